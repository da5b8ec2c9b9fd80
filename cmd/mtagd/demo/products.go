package demo

import "strings"

// product is a piece that the shop sells.
type product struct {
	ID       string  `json:"id"`
	Name     string  `json:"name"`
	Category string  `json:"category"`
	Price    float64 `json:"price"` // EUR
	Glaze    string  `json:"glaze"`

	Line  string      `json:"-"` // the text in a list
	Text  string      `json:"-"` // the text on its own page
	Facts [][2]string `json:"-"` // pairs of a name and a value
}

var glazes = []string{"sand", "moss", "ink", "rust"}

var products = []product{
	{
		ID: "mug-dune", Name: "Dune mug", Category: "Cups", Price: 28, Glaze: "rust",
		Line:  "Holds heat, and a hand",
		Text:  "A mug with a broad foot that stands firm and a handle with room for four fingers. The lower third stays bare, the way it came off the wheel.",
		Facts: [][2]string{{"Holds", "320 ml"}, {"Height", "9.5 cm"}, {"Weight", "380 g"}},
	},
	{
		ID: "dripper-halo", Name: "Halo dripper", Category: "Coffee", Price: 34, Glaze: "sand",
		Line:  "One cup at a time",
		Text:  "A cone with ridges that turn like a wheel track, so that the water finds its way around all of the coffee. For paper filters of size 02.",
		Facts: [][2]string{{"For", "1 to 4 cups"}, {"Height", "10 cm"}, {"Weight", "410 g"}},
	},
	{
		ID: "kettle-heron", Name: "Heron kettle", Category: "Coffee", Price: 89, Glaze: "ink",
		Line:  "Pours as thin as a thread",
		Text:  "The spout is drawn by hand from one piece of clay and bent while it is still soft. Stands on gas and on ceramic hobs.",
		Facts: [][2]string{{"Holds", "900 ml"}, {"Height", "17 cm"}, {"Weight", "1,150 g"}},
	},
	{
		ID: "bowl-tide", Name: "Tide bowl", Category: "Table", Price: 42, Glaze: "moss",
		Line:  "For salad, or for keys",
		Text:  "A wide bowl with a single line that runs around it like the mark of high water. No two lines are alike.",
		Facts: [][2]string{{"Holds", "2.1 l"}, {"Width", "28 cm"}, {"Weight", "980 g"}},
	},
	{
		ID: "vase-reed", Name: "Reed vase", Category: "Home", Price: 56, Glaze: "sand",
		Line:  "Three stems are enough",
		Text:  "A narrow neck that holds few stems upright over a belly with plenty of water. Glazed inside, so that it keeps it there.",
		Facts: [][2]string{{"Holds", "650 ml"}, {"Height", "21 cm"}, {"Weight", "720 g"}},
	},
	{
		ID: "cups-pebble", Name: "Pebble cups, set of 3", Category: "Cups", Price: 38.5, Glaze: "moss",
		Line:  "Espresso, and good company",
		Text:  "Three small cups, thrown off the hump one after the other. They stack, though they would rather not.",
		Facts: [][2]string{{"Holds", "80 ml each"}, {"Height", "5.5 cm"}, {"Weight", "160 g each"}},
	},
}

func findProduct(id string) (product, bool) {
	for _, p := range products {
		if p.ID == id {
			return p, true
		}
	}
	return product{}, false
}

// search finds the pieces whose texts contain the query. An empty query finds all.
func search(query string) []product {
	var found []product
	for _, p := range products {
		if strings.Contains(strings.ToLower(p.Name+" "+p.Category+" "+p.Line), strings.ToLower(query)) {
			found = append(found, p)
		}
	}
	return found
}

// otherProducts returns three pieces other than p.
func otherProducts(p product) []product {
	var others []product
	for _, other := range products {
		if other.ID != p.ID && len(others) < 3 {
			others = append(others, other)
		}
	}
	return others
}
