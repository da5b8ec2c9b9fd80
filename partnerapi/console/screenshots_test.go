package console_test

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// screenshots is set by make screenshots.
var screenshots = flag.String("screenshots", "", "write pictures of the console's pages, for its guide, to this folder")

// pictureLimit is how many bytes a picture of the guide may have.
const pictureLimit = 60_000

// inTheGuide are the pages whose pictures the guide has. They are light, but for one.
var inTheGuide = map[string]struct {
	theme         string
	width, height int64
}{
	"sign-in":   {"light", 1100, 620},
	"merchants": {"light", 1100, 620},
	"dns":       {"light", 1100, 760},
	"install":   {"light", 1100, 980},
	"events":    {"dark", 1100, 900},
	"live":      {"light", 1100, 620},
	"refused":   {"light", 1100, 980},
	"privacy":   {"light", 1100, 720},
	"settings":  {"light", 1100, 900},
	"overview":  {"light", 1100, 900},
	"audit":     {"light", 1100, 620},
	"phone":     {"dark", 320, 640},
}

// TestScreenshots takes the pictures of the guide.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("make screenshots runs this")
	}
	s := newService(t)
	b, p := newTab(t, startBrowser(t, s)), s.newPartner("Agency North")
	_, err := chromedp.Call(b.ctx, emulation.SetScrollbarsHidden, emulation.SetScrollbarsHiddenParams{Hidden: true})
	if err != nil {
		t.Fatal(err)
	}
	b.look("light", 1100, 620)
	b.open("/")
	b.see("API key")
	b.picture("sign-in")
	pages := sample(p)
	b.asPartner(p)
	for _, page := range pages {
		if !page.operator {
			b.visit(p, page)
			b.picture(page.name)
		}
		if page.name == "merchants" {
			b.picture("phone")
		}
	}
	b.asOperator(p, func() {})
	for _, page := range pages {
		if page.operator {
			b.visit(p, page)
			b.picture(page.name)
		}
	}
}

// visit opens a page, and waits until it is complete. On the live page some events come in.
func (b *tab) visit(p *partner, page page) {
	b.Helper()
	b.open(page.path)
	b.see(page.text)
	switch page.name {
	case "events":
		b.wait("chart", "document.querySelector('.chart canvas')")
	case "refused":
		b.do(chromedp.Click(chromedp.CSS("details.event > summary")))
	case "live":
		tag := b.tagOf(p, page)
		for i, name := range []string{"PageView", "ViewItem", "AddToCart", "PageView", "Search", "BeginCheckout", "Purchase"} {
			p.mark(tag, map[string]any{"muid": []string{"5f0c1c86-6f0e", "91be77a0-02d4"}[i%2], "event": name, "value": 89, "currency": "EUR"})
			time.Sleep(300 * time.Millisecond) // so that the times differ
		}
		b.see("Purchase")
		b.do(chromedp.Click(chromedp.CSS("details.event > summary")))
	}
}

// tagOf returns the tag of the merchant of a page.
func (b *tab) tagOf(p *partner, page page) string {
	b.Helper()
	var merchant struct{ TagID string }
	p.api("GET", filepath.Dir("/merchant/"+page.path[len("/merchants/"):]), nil, &merchant)
	return merchant.TagID
}

// picture takes a picture of the window, if the guide has it.
func (b *tab) picture(name string) {
	b.Helper()
	shot, ok := inTheGuide[name]
	if !ok {
		return
	}
	b.look(shot.theme, shot.width, shot.height)
	b.ask(`document.fonts.ready.then(() => new Promise((done) => setTimeout(done, 600)))`) // the chart draws itself again
	b.ask(`document.getAnimations().forEach((a) => a.finish instanceof Function && a.effect.getComputedTiming().iterations < Infinity && a.finish())`)
	full, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	small, err := reduce(full)
	if err != nil {
		b.Fatal(err)
	}
	if len(small) > pictureLimit {
		b.Errorf("the picture of %s has %d bytes, want at most %d", name, len(small), pictureLimit)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), small, 0o644); err != nil {
		b.Fatal(err)
	}
	b.look("light", 1100, 620)
}

// reduce makes a PNG smaller: it keeps the 256 colours that most pixels have, and gives each other pixel the nearest of
// them.
func reduce(full []byte) ([]byte, error) {
	picture, err := png.Decode(bytes.NewReader(full))
	if err != nil {
		return nil, err
	}
	bounds := picture.Bounds()
	counts := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	colors := make([]color.RGBA, 0, len(counts))
	for c := range counts {
		colors = append(colors, c)
	}
	slices.SortFunc(colors, func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	var palette color.Palette
	for _, c := range colors[:min(len(colors), 256)] {
		palette = append(palette, c)
	}
	reduced, nearest := image.NewPaletted(bounds, palette), map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			index, known := nearest[c]
			if !known {
				index = uint8(palette.Index(c))
				nearest[c] = index
			}
			reduced.SetColorIndex(x, y, index)
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced)
	return out.Bytes(), err
}
