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
// agreed to.
func Snippet(tagURL string, id store.TagID) string {
	return fmt.Sprintf(`<script>
  window.mtrem = window.mtrem || []; window.mtag = window.mtag || function () { mtrem.push(arguments); };
  mtag('init', '%s', { consent: false }); /* true when this visitor has agreed */
</script>
<script async src="%s"></script>
`, inScript.Replace(tagURL+"?tagId="+url.QueryEscape(string(id))), html.EscapeString(tagURL+"/script"))
}

// inScript escapes what would end a JavaScript string in single quotes, or the script element around it.
var inScript = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "\r", `\r`, `<`, `\x3C`)
