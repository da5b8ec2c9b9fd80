package control

import (
	"context"
	"crypto/rand"
	"io"

	bolt "go.etcd.io/bbolt"
)

// ID returns the id of the data directory. A directory without one gets it now.
func (d *Data) ID() (string, error) { return d.newID(false) }

// ReplaceID gives the data directory another id, because it has become another one: it was restored. It ends all sessions, as
// some of them may have been ended since the backup.
func (d *Data) ReplaceID() (id string, err error) { return d.newID(true) }

func (d *Data) newID(replace bool) (id string, err error) {
	err = d.update(context.Background(), func(c *change) error {
		if id = d.state.id; id != "" && !replace {
			return nil
		}
		if replace {
			for _, s := range d.state.sessions {
				c.deleteSession(s)
			}
		}
		id = rand.Text()[:16]
		c.writes = append(c.writes, write{inMeta, keyID, []byte(id)})
		c.publish = append(c.publish, func() { d.state.id = id })
		return nil
	})
	return id, err
}

// Snapshot is the control data as of one moment. While it is open, changes make the file grow, because no page can be used
// again.
type Snapshot struct {
	Version uint64 // Sum: two snapshots with the same one have the same records

	tx *bolt.Tx
}

// Snapshot returns the control data as it is now. It calls now before the next change can be made.
func (d *Data) Snapshot(now func()) (Snapshot, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	tx, err := d.db.Begin(false)
	if err != nil {
		return Snapshot{}, err
	}
	now()
	return Snapshot{Version: d.sums.sum(), tx: tx}, nil
}

// Size is how many bytes WriteTo writes.
func (s Snapshot) Size() int64 { return s.tx.Size() }

// WriteTo writes a control.db.
func (s Snapshot) WriteTo(w io.Writer) (int64, error) { return s.tx.WriteTo(w) }

// Close ends the snapshot.
func (s Snapshot) Close() error { return s.tx.Rollback() }
