package control

import (
	"context"
	"errors"
	"fmt"
	"os"

	"mtagd/store/local/boltfile"
	"mtagd/store/rules"
)

// Verify reads control.db from the disk, checks it as Open does, and compares the records that must agree. It passes what is
// wrong to wrong, with the record's bucket and key, and returns the number of records.
func (d *Data) Verify(ctx context.Context, wrong func(where, problem string)) (records uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := d.verifyCopy(); err != nil {
		wrong(copyName, fmt.Sprintf("is damaged, and the next change rebuilds it: %v", err))
	}
	r, err := d.readAgain(toLoad)
	if err != nil {
		wrong(fileName, err.Error())
		return 0, nil
	}
	for _, p := range r.wrong {
		wrong(p.where(), p.text)
	}
	if len(r.wrong) == 0 {
		rules.New(driver{d}, r.loaded, d.log).Compare(func(bucket, key, text string) {
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
	_, err := readCopy(d.path, toCompare)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		err = errors.Join(err, d.dropCopy())
	}
	return err
}

// readAgain reads the file as of the last change.
func (d *Data) readAgain(as purpose) (r *reading, err error) {
	if d.db == nil {
		return read(d.file, as)
	}
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var scan *boltfile.Scan
	var scanErr error
	snapshot, err := d.Snapshot(func() { scan, scanErr = boltfile.OpenScan(f) }) // until Close, bbolt keeps its pages
	if err != nil {
		return nil, err
	}
	if scanErr == nil {
		r, scanErr = readScan(scan, as)
	}
	return r, errors.Join(scanErr, snapshot.Close())
}
