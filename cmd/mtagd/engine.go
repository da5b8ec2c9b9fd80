package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/local/control"
	"mtagd/store/postgres"
)

// openEngine opens the storage engine, and creates it if the data directory or the database is new.
func (d *daemon) openEngine(ctx context.Context) (store.Engine, error) {
	keep := retention(d.RetentionDays)
	if d.Store != "" {
		return openDatabase(ctx, d.Store, postgres.Options{Log: d.Log, Retention: keep, Size: d.storeSize, Metrics: d.metrics})
	}
	engine, err := local.Open(d.Data, local.Options{Log: d.Log, Now: time.Now, Metrics: d.metrics, Retention: keep})
	return engine, openError(d.Data, err)
}

func openDatabase(ctx context.Context, database string, opt postgres.Options) (store.Engine, error) {
	engine, err := postgres.Open(ctx, database, opt)
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	return engine, nil
}

// checkDatabase returns why a node cannot start with a database. It changes nothing.
func checkDatabase(ctx context.Context, database string) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if err := postgres.CheckDatabase(ctx, database); err != nil {
		return fmt.Errorf("the database of --store: %w", err)
	}
	return nil
}

// checkStore accepts the address of a database, or nothing.
func checkStore(s string) error {
	if s != "" && !strings.HasPrefix(s, "postgres://") && !strings.HasPrefix(s, "postgresql://") {
		return errors.New("must be an address such as postgres://mtagd@db1,db2/mtagd")
	}
	return nil
}

// errNotWithStore is for what is about the files of the embedded engine.
var errNotWithStore = errors.New("is not for a database of --store: back it up, restore and repair it with the tools of PostgreSQL")

// sharedOf returns what an engine shares with other nodes; nil when there are no other nodes.
func sharedOf(engine store.Engine) store.Shared {
	shared, _ := engine.(store.Shared)
	return shared
}

// dataParts returns the paths of the files in the data directory, by what they hold. With a database there are none.
func dataParts(data, database string) map[string]string {
	if database != "" {
		return map[string]string{}
	}
	parts := local.Parts(data)
	parts["certificates"] = certificatesDir(data)
	return parts
}

func certificatesDir(data string) string { return filepath.Join(data, "certificates") }

// reserve is how much disk space the engine leaves free, in bytes.
const reserve = local.MinFree

// verifyDatabase verifies a database, which other nodes may have open.
func verifyDatabase(ctx context.Context, database string, log *slog.Logger, v store.Verification) (counts store.Verified, err error) {
	engine, err := openDatabase(ctx, database, postgres.Options{Log: log})
	if err != nil {
		return counts, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return engine.Verify(ctx, v)
}

// verifyClosed verifies a data directory that no server has open.
func verifyClosed(ctx context.Context, data string, v store.Verification) (store.Verified, error) {
	if err := existingData(data); err != nil {
		return store.Verified{}, err
	}
	counts, err := local.VerifyClosed(ctx, data, v)
	return counts, openError(data, err)
}

// repairData makes a new data directory of what can be read of another one.
func repairData(ctx context.Context, data, to string, log *slog.Logger, lost func(store.Finding)) error {
	err := local.Repair(ctx, data, to, log, lost)
	switch {
	case errors.Is(err, store.ErrInUse) || store.KindOf(err) == store.KindInvalid:
		return openError(data, err)
	case err != nil:
		return fillError(ctx, "repair", to, err)
	}
	if err := os.Remove(filepath.Join(to, markerName)); !errors.Is(err, fs.ErrNotExist) { // it was copied
		return err
	}
	return nil
}

// openControl opens the control data for an operator command, when no server has it open. Without control data in the
// directory it fails, so that a mistyped directory is noticed. Only when create is set and the directory is empty, it
// creates the data and says so on stderr.
func openControl(data string, create bool, stderr io.Writer) (operator.Control, error) {
	created, err := checkData(data, create)
	if err != nil {
		return nil, fmt.Errorf("data directory %s %w", data, err)
	}
	opened, err := local.OpenControl(data, local.Options{Log: quietLog(stderr)})
	if err != nil {
		return nil, openError(data, err)
	}
	if created {
		fmt.Fprintf(stderr, "mtagd: created a new store in the empty data directory %s\n", data)
	}
	return opened, nil
}

// openError adds the name of the data directory to an error, if there is one.
func openError(data string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrInUse):
		return fmt.Errorf("%s: %w", data, err) // its text says that this is a data directory
	}
	return fmt.Errorf("data directory %s: %w", data, err)
}

// existingData returns an error if a directory has no store.
func existingData(data string) error {
	if _, err := checkData(data, false); err != nil {
		return fmt.Errorf("data directory %s %w", data, err)
	}
	return nil
}

// checkData reports whether opening the data directory creates a store, or why the directory must not be opened.
func checkData(data string, create bool) (creates bool, err error) {
	if err := local.CheckFinished(data); err != nil {
		return false, fmt.Errorf("cannot be used: %w", err)
	}
	found, err := control.Inspect(data)
	switch {
	case err != nil:
		return false, fmt.Errorf("cannot be read: %w", err)
	case found == control.NoDirectory:
		return false, errors.New("does not exist. Name the directory of your service with --data, or create the directory for a new one")
	case found == control.OtherFiles:
		return false, errors.New("contains other files, but no control.db. Name the directory of your service with --data")
	case found == control.Nothing && !create:
		return false, errors.New(`is empty. Name the directory of your service with --data, or create a partner first with "mtagd partner add"`)
	}
	return found == control.Nothing, nil
}
