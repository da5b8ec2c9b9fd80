package main

import (
	"go/build"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayImport says which packages of this program a package may import. A name with a slash at its end stands for all packages
// in that directory.
var mayImport = []struct {
	packages, imports string
}{
	{"store", ""},
	{"store/budget store/merge store/testenv store/local/crc store/local/durable store/local/space", ""},
	{"store/removal store/watch store/local/codec", "store"},
	{"store/rules", "store"}, // which knows no engine
	{"store/groupcommit", "store store/rules"},
	{"store/migrate", "store store/rules"}, // the words that both engines exchange
	{"store/local/log", "store/local/crc store/local/durable store/local/space"},
	{"store/local/backup", "store store/local/codec store/local/durable"},
	{"store/local/badgerdb", "store/merge store/local/codec store/local/crc store/local/durable store/local/space"},
	{"store/local/boltfile", "store store/local/codec store/local/durable"},
	// The rooms of the embedded engine do not know each other.
	{"store/local/journal", "store store/groupcommit store/migrate store/rules store/local/badgerdb store/local/codec store/local/durable store/local/log store/local/space"},
	{"store/local/archive", "store store/local/badgerdb store/local/codec"},
	{"store/local/rank", "store store/local/boltfile store/local/codec store/local/space"},
	{"store/local/control", "store store/rules store/local/boltfile store/local/codec store/local/durable store/local/space"},
	// The engines know neither each other, nor who uses them.
	{"store/local", "store store/groupcommit store/migrate store/removal store/rules store/watch store/local/"},
	// Nor do the rooms of the engine on PostgreSQL.
	{"store/postgres/conn", "store store/budget"},
	{"store/postgres/schema", "store/postgres/conn"},
	{"store/postgres/count", "store store/postgres/conn"},
	{"store/postgres/control", "store store/rules store/postgres/conn"},
	{"store/postgres/nodes", "store store/postgres/conn"},
	{"store/postgres/write", "store store/groupcommit store/rules store/postgres/conn store/postgres/count"},
	{"store/postgres/read", "store store/merge store/rules store/watch store/postgres/conn store/postgres/control store/postgres/count"},
	{"store/postgres/remove", "store store/removal store/rules store/postgres/conn store/postgres/control store/postgres/count store/postgres/read store/postgres/write"},
	{"store/postgres", "store store/postgres/ store/budget store/groupcommit store/migrate store/removal store/rules"},
	// The protocols see the engine's contract alone, and only the front door sees connections.
	{"edge", "store store/budget edge/ partnerapi"},
	{"edge/", "store edge/"},
	{"edge/tag", "store store/budget edge/asset edge/check edge/clientaddr edge/limit edge/refused edge/requestid edge/sdk edge/tag/eventjson"},
	{"edge/tag/eventjson", ""},
	{"partnerapi partnerapi/", "store store/budget partnerapi partnerapi/ edge/"},
	{"partnerapi/delivery", "store store/rules partnerapi/delivery/"}, // the rules say whose an event is
	// A kind of destination knows what a kind is, and no more.
	{"partnerapi/delivery/kind partnerapi/delivery/filter", "store"},
	{"partnerapi/delivery/meta partnerapi/delivery/ga4 partnerapi/delivery/tiktok " +
		"partnerapi/delivery/googleads partnerapi/delivery/microsoft partnerapi/delivery/pinterest partnerapi/delivery/snap partnerapi/delivery/linkedin", "store partnerapi/delivery/kind"},
	{"partnerapi/delivery/webhook partnerapi/delivery/sinks", "store partnerapi/export partnerapi/delivery/kind"},
	{"tlsmgr tlsmgr/", "store tlsmgr/"},
}

func TestImports(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	fits := func(name, list string) bool {
		return slices.ContainsFunc(strings.Fields(list), func(one string) bool {
			return name == one || strings.HasSuffix(one, "/") && strings.HasPrefix(name, one)
		})
	}
	checked := 0
	if err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if name != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "node_modules" || strings.HasSuffix(e.Name(), "test")) {
			return filepath.SkipDir
		}
		p, err := build.ImportDir(path, 0)
		if err != nil {
			return nil // there is no package
		}
		allowed, known := "", false
		for _, rule := range mayImport { // the last one counts, and one of the package itself before those of its directory
			if slices.Contains(strings.Fields(rule.packages), name) {
				allowed, known = rule.imports, true
			} else if fits(name, rule.packages) && !known {
				allowed, known = rule.imports, true
			}
		}
		if !known {
			return nil
		}
		checked++
		for _, imported := range p.Imports {
			if of, is := strings.CutPrefix(imported, "mtagd/"); is && !fits(of, allowed) {
				t.Errorf("%s imports %s. It may import %q", name, of, allowed)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if checked < 35 {
		t.Errorf("only %d packages were checked", checked)
	}
}
