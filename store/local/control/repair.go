package control

import (
	"path/filepath"

	"mtagd/store"
	"mtagd/store/rules"
)

// Repair writes the records that can be read, and that fit together, into a new control.db in the directory to. It passes what
// is left out to lost.
func (d *Data) Repair(to string, lost func(where, problem string)) error {
	r, err := d.readAgain(toRepair)
	if err != nil {
		return err
	}
	if len(r.wrong) > 0 {
		if second, err := readCopy(d.path, r.newest(), toRepair); err == nil { // nothing is lost
			r.close()
			r = second
		}
	}
	defer r.close()
	d.sums = r.wanted // Sum says which file it was
	for _, p := range r.wrong {
		lost(p.where(), p.text)
	}
	r.state.Repair(func(bucket, key, text string) {
		p := problem{bucket: bucket, key: key}
		lost(p.where(), text)
	})
	kept, err := r.state.Records()
	if err != nil {
		return err
	}
	records := writesIn(kept)
	owners := map[store.MerchantID]bool{"": true}
	for _, r := range kept {
		if r.Kind == rules.Merchants {
			owners[store.MerchantID(r.Key)] = true
		}
	}
	damaged := map[store.AuditID]write{}
	for _, p := range r.wrong {
		if p.bucket != inLog || len(p.key) != auditKeySize {
			continue
		}
		id, at := auditID(p.key), auditTime(p.key)
		if damaged[id], err = newWrite(inLog, p.key, store.AuditEntry{ID: id, At: at, Action: store.EntryDamaged}); err != nil {
			return err
		}
	}
	first, last := store.AuditID(0), store.AuditID(0)
	for _, w := range r.raw {
		if doc := parseDocument(w.key); w.bucket == inDocuments && doc.Kind.IsKept() && owners[doc.Merchant] {
			records = append(records, w)
		}
		if w.bucket != inLog || len(w.key) != auditKeySize {
			continue
		}
		id := auditID(w.key)
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
