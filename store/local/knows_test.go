package local

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// The parts of the engine know only those before them, as the package comment says.
func TestWhoKnowsWhom(t *testing.T) {
	parts := []string{"stored", "liveIndex", "reader", "archiver", "remover", "people", "healer", "engine"}
	p, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	check := func(part string, of ast.Node) {
		at := slices.Index(parts, part)
		if at < 0 {
			return
		}
		seen[part] = true
		ast.Inspect(of, func(n ast.Node) bool {
			if id, is := n.(*ast.Ident); is && slices.Index(parts, id.Name) > at {
				t.Errorf("%s knows %s", part, id.Name)
			}
			return true
		})
	}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					continue
				}
				receiver := d.Recv.List[0].Type
				if star, is := receiver.(*ast.StarExpr); is {
					receiver = star.X
				}
				if id, is := receiver.(*ast.Ident); is {
					check(id.Name, d)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, is := s.(*ast.TypeSpec); is {
						check(s.Name.Name, s.Type)
					}
				}
			}
		}
	}
	if len(seen) != len(parts) {
		t.Errorf("only %v were found", seen)
	}
}
