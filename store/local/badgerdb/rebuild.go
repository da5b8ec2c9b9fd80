package badgerdb

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// Rebuild replaces the content of the database. write makes a new database in another directory, with one part, and closes
// it. Then Rebuild calls before, and takes that part. Reads that have begun go on with the old tables; these are removed
// when the reads end. A kill leaves the old data or the new.
func (d *DB) Rebuild(write func(dir string) error, before func() error) error {
	return rebuild(d.dir, write, before, d.adopt)
}

// Rebuild is DB.Rebuild for the database in dir that cannot be opened.
func Rebuild(dir string, log *slog.Logger, write func(dir string) error, before func() error) (err error) {
	d, err := lock(dir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.unlock()) }()
	return rebuild(dir, write, before, func(by string) error {
		l, part, err := onlyPart(by)
		if err == nil {
			_, err = nameDir(dir, l, part)
		}
		return err // the next Open removes the others
	})
}

// rebuilt is added to the name of a directory for the directory that is to replace it. After a kill, Open removes the latter.
const rebuilt = ".part"

func rebuild(dir string, write func(dir string) error, before func() error, adopt func(dir string) error) error {
	by := dir + rebuilt
	err := os.RemoveAll(by)
	if err == nil {
		err = write(by)
	}
	if err == nil {
		err = before()
	}
	if err == nil {
		err = adopt(by)
	}
	if err == nil {
		err = os.RemoveAll(by)
	}
	return err
}

// adopt replaces the parts by that of the database in another directory.
func (d *DB) adopt(by string) error {
	d.compacting.Lock()
	defer d.compacting.Unlock()
	d.writing.Lock()
	defer d.writing.Unlock()
	l, part, err := onlyPart(by)
	if err != nil {
		return err
	}
	was := d.parts
	l.version = max(l.version, d.last)
	if err := d.addPart(l, part); err != nil {
		return err
	}
	d.replace(was, nil)
	d.last = max(d.last, l.version, d.current().newestVersion())
	d.memory, d.dirty = memTable{}, false
	d.met.first.Store(nil)
	return nil
}

// onlyPart returns the directory of the only part of a database, with its list.
func onlyPart(dir string) (l list, part string, err error) {
	counts, _, err := findParts(dir)
	if err == nil && len(counts) != 1 {
		err = fmt.Errorf("%s has %d parts instead of one", dir, len(counts))
	}
	if err != nil {
		return l, "", err
	}
	part = filepath.Join(dir, counts[0])
	l, err = readList(part)
	return l, part, err
}
