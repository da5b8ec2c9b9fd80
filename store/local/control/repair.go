package control

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"mtagd/store"
	"mtagd/store/rules"
)

// Repair writes the records that can be read, and that fit together, into a new control.db in the directory to. It calls
// lost for each record that it leaves out. sums are as for OpenNewest.
func (d *Data) Repair(to string, lost func(where, problem string), sums ...uint64) error {
	r, err := d.readAgain(toRepair)
	if err != nil {
		return err
	}
	if len(r.wrong) > 0 {
		r = r.completed(copyPath(d.path), sums)
	}
	if r.mayBeOlder && (r.wanted == nil || !slices.Contains(sums, r.wanted.sum())) { // else it is known to be the newest
		r = &reading{loaded: &rules.Loading{}, wrong: r.wrong}
	}
	d.sums = r.wanted // Sum says which file it was
	for _, p := range r.wrong {
		lost(p.where(), p.text)
	}
	repaired, err := rules.New(driver{d}, r.loaded, d.log).Repair(func(bucket, key, text string) {
		p := problem{bucket: bucket, key: key}
		lost(p.where(), text)
	})
	if err != nil {
		return err
	}
	kept := map[[2]string]rules.Record{} // of package rules
	for _, w := range slices.Concat(r.raw, repaired) {
		if w.Kind != rules.Sessions && slices.Contains(rules.Kinds(), w.Kind) { // everybody signs in again
			kept[[2]string{w.Kind, w.Key}] = w
		}
	}
	maps.DeleteFunc(kept, func(_ [2]string, w rules.Record) bool { return w.Value == nil })
	records := slices.Collect(maps.Values(kept))
	damaged := map[store.AuditID]rules.Record{}
	for _, p := range r.wrong {
		if p.bucket != inLog || len(p.key) != auditKeySize {
			continue
		}
		id := auditID(p.key)
		if damaged[id], err = inAuditLog(store.AuditEntry{ID: id, At: auditTime(p.key), Action: store.EntryDamaged}); err != nil {
			return err
		}
	}
	first, last := store.AuditID(0), store.AuditID(0)
	for _, w := range r.raw {
		if doc := parseDocument(w.Key); w.Kind == inDocuments && doc.Kind.IsKept() {
			if _, owned := kept[[2]string{rules.Merchants, string(doc.Merchant)}]; owned || doc.Merchant == "" {
				records = append(records, w)
			}
		}
		if w.Kind != inLog || len(w.Key) != auditKeySize {
			continue
		}
		id := auditID(w.Key)
		delete(damaged, id)
		if first == 0 || id < first {
			first = id
		}
		last = max(last, id)
		records = append(records, w)
	}
	for id, w := range damaged {
		if id > first && id < last { // else its key may be damaged too
			records = append(records, w)
		}
	}
	return writeNew(filepath.Join(to, fileName), records)
}

// completed adds to a damaged file what its copy has. It returns the copy if that is sound and may replace the file; else
// the records of both, if together they are complete or both files have the same sums; else the damaged file alone.
func (r *reading) completed(path string, sums []uint64) *reading {
	f, err := os.Open(path)
	if err != nil {
		return r
	}
	defer f.Close()
	second, err := read(f, toRepair)
	if err != nil {
		return r
	}
	if len(second.wrong) == 0 && second.isComplete() && second.mayReplace(r, sums) {
		return second
	}
	both := newReading(toRepair)
	both.format = Format
	has := map[[2]string]bool{}
	for _, w := range slices.Concat(r.raw, second.raw) {
		if id := [2]string{w.Kind, w.Key}; !has[id] {
			has[id] = true
			both.add(w.Kind, w.Key, w.Value, sealOf(w.Kind, w.Key, w.Value), true)
		}
	}
	if both.isComplete() && both.mayReplace(r, sums) {
		return both
	}
	if one, other := r.newest(), second.newest(); one == nil || other == nil || one.sum() != other.sum() {
		return r
	}
	for _, p := range r.wrong {
		if p.bucket == "" || p.key != "" && !has[[2]string{p.bucket, p.key}] {
			both.report(p)
		}
	}
	both.compareSums()
	return both
}
