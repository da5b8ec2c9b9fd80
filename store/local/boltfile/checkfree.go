package boltfile

import "fmt"

// checkFree checks that each page is either in the tree, or in the list of free pages.
func (w *walk) checkFree() error {
	list := suspect{id: w.meta.free}
	b, err := w.Scan.page(list.id)
	var free []uint64
	if err == nil {
		free, err = freePages(b, list.id)
	}
	if err != nil {
		return &PageError{Page: list.id, Problem: err.Error(), suspects: []suspect{list}}
	}
	used := map[uint64]bool{}
	for i := range uint64(len(b) / w.meta.pageSize) {
		used[list.id+i] = true
	}
	for _, id := range free {
		parent, reached := w.seen[id]
		if reached || used[id] || id < 2 || id >= w.meta.size {
			e := &PageError{Page: id, Problem: "is in use, and in the list of free pages", suspects: []suspect{list}}
			if parent != nil {
				e.suspects = append(e.suspects, *parent)
			}
			return e
		}
		used[id] = true
	}
	for id := range w.seen {
		if used[id] {
			return &PageError{Page: id, Problem: "is in use, and has the list of free pages", suspects: []suspect{list}}
		}
	}
	missing := w.meta.size - 2 - uint64(len(used)) - uint64(len(w.seen))
	if missing != 0 && !w.opt.BranchesOnly { // which does not know how many pages a leaf has
		return &PageError{Page: list.id, Problem: fmt.Sprintf("does not list all free pages: %d are missing", missing), suspects: []suspect{list}}
	}
	return nil
}
