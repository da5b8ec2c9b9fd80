package partnerapi

import (
	"fmt"
	"html"
	"net/url"
	"strings"

	"mtagd/store"
)

// Snippet returns the two script elements that install a tag in the head of a page (spec, Browser installation
// contract). tagURL is the address of the tag's host. Consent is false, because only the site knows what its visitors have
// agreed to. The first element leaves events in the queue of the browser tag, in the form that package sdk describes. It
// leaves out events with an email or a phone number, which must not lie on the device. It knows no option of init but
// consent, so with others it leaves nothing.
func Snippet(tagURL string, id store.TagID) string {
	query := url.QueryEscape(string(id))
	return fmt.Sprintf(`<script>
  window.mtrem = window.mtrem || [];
  window.mtag = window.mtag || function () { mtrem.push(arguments); };
  // Set consent to true when this visitor has agreed, or call mtag('consent', true) later.
  mtag('init', '%s', { consent: false });
  // When the page is left before the script below has loaded, the next page sends the events.
  addEventListener('pagehide', function () {
    var options = mtrem[0] && mtrem[0][2];
    if (mtrem.left || !options || Object.keys(options) != 'consent' || options.consent !== true || document.prerendering ||
      mtrem.some(function (call) { return call[0] == 'consent' || call[0] == 'reset'; })) return;
    mtrem.left = true;
    [['event', 'PageView']].concat(mtrem.splice(1)).forEach(function (call) {
      if (call[0] != 'event') return;
      try {
        var event = Object.assign({ event_time: new Date(), pageUrl: location.href, pageTitle: document.title },
          typeof call[1] == 'object' ? call[1] : { event: call[1] }, call[2]);
        event.event = event.event || event.type;
        event.event_id = (event.event_id || Math.random()) + '';
        event = JSON.stringify(event);
        if (!/"(email|phone)":/.test(event)) localStorage['_mtag.%s.' + Date.now() + 'mark' + Math.random()] = event;
      } catch (error) {}
    });
  });
</script>
<script async src="%s"></script>
`, inScript.Replace(tagURL+"?tagId="+query), inScript.Replace(query), html.EscapeString(tagURL+"/script"))
}

// inScript escapes what would end a JavaScript string in single quotes, or the script element around it.
var inScript = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "\r", `\r`, `<`, `\x3C`)
