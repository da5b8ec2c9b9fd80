package sdk_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const sale = "value:number currency:string products:Product[]"

// The pre-defined events of the spec, each with its fields besides email and phone.
var predefined = map[string]string{
	"ViewContent":          "",
	"ViewItem":             sale + " content_event:string",
	"Login":                "",
	"Signup":               "",
	"CompleteRegistration": "",
	"StartTrial":           sale,
	"AddPaymentInfo":       sale + " payment_event:string",
	"AddShippingInfo":      sale + " shipping_tier:string",
	"ViewCart":             sale,
	"AddToCart":            sale,
	"AddToWishlist":        sale,
	"RemoveFromCart":       sale,
	"BeginCheckout":        sale + " shipping_cost:number tax:number",
	"Purchase":             sale + " shipping_cost:number tax:number transaction_id:string",
	"Refund":               sale + " transaction_id:string",
	"Search":               "item_id:string search_term:string",
	"Share":                "item_id:string share_method:string",
	"Subscribe":            sale,
	"Lead":                 "value:number currency:string",
	"SubmitApplication":    "application_id:string",
	"Contact":              "",
	"Donate":               "",
	"Schedule":             "",
}

var (
	declaration = regexp.MustCompile(`(?ms)^export interface (\w+)(?: extends (\w+))? \{\n(.*?)^\}`)
	member      = regexp.MustCompile(`(?m)^  (\w+)(\??): (.*);$`)
)

// fieldsOf returns the fields of an interface and of those that it extends, as "name:type". All must be optional,
// except those in required.
func fieldsOf(t *testing.T, types map[string][]string, name string, required ...string) []string {
	t.Helper()
	found, ok := types[name]
	if !ok {
		t.Fatalf("there is no interface %s", name)
	}
	var all []string
	if found[2] != "" {
		all = fieldsOf(t, types, found[2])
	}
	for _, m := range member.FindAllStringSubmatch(found[3], -1) {
		field, optional, kind := m[1], m[2] == "?", m[3]
		if optional == slices.Contains(required, field) {
			t.Errorf("%s.%s: optional is %v", name, field, optional)
		}
		if strings.Contains(kind, "(string & {})") {
			kind = "string" // any string, with suggestions
		}
		all = append(all, field+":"+kind)
	}
	return all
}

// interfaces returns the interfaces of npm/mtag.d.ts by name, as declaration matches them, and its text.
func interfaces(t *testing.T) (types map[string][]string, text string) {
	t.Helper()
	file, err := os.ReadFile("npm/mtag.d.ts")
	if err != nil {
		t.Fatal(err)
	}
	types = map[string][]string{}
	for _, d := range declaration.FindAllStringSubmatch(string(file), -1) {
		types[d[1]] = d
	}
	return types, string(file)
}

func TestTheTypesHaveEveryPredefinedEvent(t *testing.T) {
	types, _ := interfaces(t)
	declared := 0
	for _, m := range member.FindAllStringSubmatch(types["Events"][3], -1) {
		declared++
		name := m[1]
		want, ok := predefined[name]
		if !ok {
			t.Errorf("%s is not a pre-defined event", name)
			continue
		}
		fields := append(strings.Fields(want), "email:string", "phone:string", "muid:string", "event_id:string")
		got := fieldsOf(t, types, m[3])
		slices.Sort(fields)
		slices.Sort(got)
		if !slices.Equal(got, fields) {
			t.Errorf("%s has %v\nwant %v", name, got, fields)
		}
	}
	if declared != len(predefined) {
		t.Errorf("%d events are declared, want %d", declared, len(predefined))
	}

	product := fieldsOf(t, types, "Product", "id")
	want := "id:string name:string category:string variants:Variant[] quantity:number price:number description:string coupon:string discount:number"
	if got := strings.Join(product, " "); got != want {
		t.Errorf("Product has %s\nwant %s", got, want)
	}
	const variant = `  /** For example size or colour pairs. */
  attributes: Record<string, string>;
  price: {
    original: number;
    discounted?: number;
    /** Currency code. */
    currency: string;
  };
  isAvailable: boolean;
`
	if types["Variant"][3] != variant {
		t.Errorf("Variant is\n%s\nwant\n%s", types["Variant"][3], variant)
	}
}

// The declarations of Mtag have every command of the tag, and Options every option that it reads.
func TestTheTypesHaveEveryCommandAndOption(t *testing.T) {
	types, text := interfaces(t)
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^  (\w+): \[|command: '(\w+)'`).FindAllStringSubmatch(types["Commands"][3]+types["Mtag"][3], -1) {
		declared = append(declared, m[1]+m[2])
	}
	slices.Sort(declared)
	source, err := os.ReadFile("src/tag.ts")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(source), "const commands")
	record, _, _ := strings.Cut(after, "\n};\n")
	var commands []string
	for _, m := range regexp.MustCompile(`(?m)^  (\w+)(?:\(.*\{|(?:: .+)?,)$`).FindAllStringSubmatch(record, -1) {
		commands = append(commands, m[1])
	}
	commands = slices.DeleteFunc(commands, func(name string) bool { return name == "part" }) // not for pages
	commands = append(commands, "link")                                                      // of a part
	slices.Sort(commands)
	if got := slices.Compact(declared); !slices.Equal(got, commands) || len(commands) < 7 {
		t.Errorf("declared: %v, the tag has: %v", got, commands)
	}

	options := strings.Join(fieldsOf(t, types, "Options"), "\n")
	want := `consent:boolean | Categories
consentMode:boolean
region:string
gpc:'respect'
pageviews:boolean
beforeSend:(event: OutgoingEvent) => OutgoingEvent | boolean | null | void
debug:boolean`
	if options != want {
		t.Errorf("Options has\n%s\nwant\n%s", options, want)
	}
	const init = `init: [url: string, options: Options & ({ consent: boolean | Categories } | { consentMode: true })];`
	if !strings.Contains(types["Commands"][3], init) {
		t.Errorf("init does not require one of consent and consentMode: %s", types["Commands"][3])
	}
	for _, category := range []string{"ad_storage", "analytics_storage", "ad_user_data", "ad_personalization"} {
		if !strings.Contains(text, "'"+category+"'") {
			t.Errorf("there is no category %s", category)
		}
	}
}
