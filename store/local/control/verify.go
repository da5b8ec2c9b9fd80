package control

import (
	"context"
	"errors"
	"fmt"
	"os"

	"mtagd/store/rules"
)

// Verify reads control.db from the disk, checks it as Open does, and compares the records that must agree. It passes what is
// wrong to wrong, with the record's bucket and key, and returns the number of records.
func (d *Data) Verify(ctx context.Context, wrong func(where, problem string)) (records uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := d.verifyCopy(); err != nil {
		wrong(copyName, fmt.Sprintf("is damaged, and the next change makes it anew: %v", err))
	}
	r, err := d.readAgain(toLoad)
	if err != nil {
		wrong(fileName, err.Error())
		return 0, nil
	}
	defer r.close()
	for _, p := range r.wrong {
		wrong(p.where(), p.text)
	}
	if len(r.wrong) == 0 {
		rules.New(driver{d}, r.state, d.log)
		r.state.Compare(func(bucket, key, text string) {
			p := problem{bucket: bucket, key: key}
			wrong(p.where(), text)
		})
	}
	return r.records, nil
}

// verifyCopy reads the copy. A damaged one is not used any more.
func (d *Data) verifyCopy() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.db != nil && d.copy == nil { // the next change makes it
		return nil
	}
	r, err := readCopy(d.path, nil, toCompare)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errors.Join(err, d.dropCopy())
	}
	return r.close()
}

// readAgain reads the file as of the last change.
func (d *Data) readAgain(as purpose) (*reading, error) {
	if d.db == nil {
		return read(d.file, 0, as)
	}
	snapshot, err := d.Snapshot(func() {}) // so that its pages are not used again
	if err != nil {
		return nil, err
	}
	f, err := os.Open(d.path)
	if err != nil {
		return nil, errors.Join(err, snapshot.Close())
	}
	defer f.Close()
	r, err := read(f, uint64(snapshot.tx.ID()), as)
	// It is closed before the next one begins: a change that makes the file grow waits for the first one, and the next one would
	// wait for that change.
	if err = errors.Join(err, snapshot.Close()); err == nil && len(r.wrong) == 0 {
		return r, nil
	}
	if err == nil {
		err = r.close()
	}
	// The meta page is overwritten by the second change after the snapshot. So read again while nothing changes.
	again, nextErr := d.Snapshot(func() { r, err = read(f, 0, as) })
	if nextErr != nil {
		return nil, nextErr
	}
	return r, errors.Join(err, again.Close())
}
