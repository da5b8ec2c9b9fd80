package archive

import (
	"context"
	"errors"
	"log/slog"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Repair writes what can be read of the archive in dir into a new one in the directory to, which must be empty or missing.
// It reads Badger's files one by one, without the lists, and looks for sound blocks behind damage. The new boundary is the
// greatest one that it finds, or the given one if that is greater. Damage is passed to wrong, with the file's path. It
// changes nothing in dir.
//
// Events of a deleted block whose replacement is lost are in the new archive. The index is rebuilt, so they are listed.
func Repair(ctx context.Context, dir, to string, boundary uint64, log *slog.Logger, wrong func(path string, err error)) error {
	w, err := Create(to, log)
	if err != nil {
		return err
	}
	if _, err := badgerdb.EachEntry(ctx, dir, isKey, func(e codec.Entry) error {
		switch {
		case e.Deleted:
		case e.Key[0] == prefixBoundary:
			n, err := parseNumber(e.Key, e.Value)
			if err != nil {
				wrong(dir, err)
			}
			boundary = max(boundary, n)
		case e.Key[0] == prefixBlock:
			if _, err := CheckBlock(e); err != nil {
				wrong(dir, err)
				return nil
			}
			return w.Put(e)
		}
		return nil
	}, wrong); err != nil {
		return errors.Join(err, w.Cancel())
	}
	return w.Close(boundary)
}
