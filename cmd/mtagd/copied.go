package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The files of a running server change while they are copied, so the copy may lack events, or be damaged. So a server leaves
// a marker in its data directory while it runs. The marker says which file it is, and names a socket of the server.
//
//   - No marker: the server had stopped.
//   - The marker is the file that it says: the server was killed, or the power was cut. The directory may have been moved.
//   - It is another file: the directory was copied, while the server ran or after it was killed. These two cannot be told
//     apart, so there is only a warning. But when the socket is still open, the server ran during the copy.
const markerName = "mtagd.running"

// marker is the content of the file.
type marker struct {
	Inode  uint64 `json:"inode"`
	Born   int64  `json:"born"`   // when the file was created, in ns since 1970; 0: the file system does not say
	Socket string `json:"socket"` // abstract: it has no file that could be moved or copied, and ends with the process
}

// checkCopied refuses a copy of a running server's directory, and warns of what may be such a copy. It also removes the
// marker at the end, after the engine has closed.
func (d *daemon) checkCopied(context.Context) error {
	if d.Store != "" { // nothing in the directory is worth a copy
		return nil
	}
	path := filepath.Join(d.Data, markerName)
	text, err := os.ReadFile(path)
	var left marker
	if err == nil && json.Unmarshal(text, &left) == nil { // else there is no marker, or a power cut cut it off
		here, err := fileMarker(path)
		switch {
		case err != nil: // the file system does not tell files apart
			d.Log.Warn("it is not known whether this data directory was copied while a server was running on it", "error", err)
		case left.Inode == here.Inode && left.Born == here.Born:
		case left.isOpen():
			return fmt.Errorf("data directory %s is a copy of one whose server is still running. The files changed while they were copied: "+
				`the copy may lack events, or be damaged. Use "mtagd backup" and "mtagd restore", or stop the server before you copy. `+
				"If the copy is a snapshot that the file system took at one moment, remove %s and start again", d.Data, path)
		default:
			d.Log.Warn("this data directory was copied while a server was running on it, or after that server was killed. "+
				`A copy of a running server's files may lack events, or be damaged: use "mtagd backup" and "mtagd restore" instead, or stop the server before you copy`,
				"data", d.Data)
		}
	}
	d.onClose(func() error {
		if here, err := fileMarker(path); err != nil || here != d.marker {
			return nil // the marker is gone, or is that of a copy, which took this directory's place
		}
		return os.Remove(path)
	})
	return nil
}

// mark leaves the marker. No other server has the directory open now.
func (d *daemon) mark(context.Context) error {
	if d.Store != "" {
		return nil
	}
	if err := d.writeMarker(filepath.Join(d.Data, markerName)); err != nil { // a full disk must not stop the start
		d.Log.Warn("a copy of this data directory will not be recognised", "error", err)
	}
	return nil
}

func (d *daemon) writeMarker(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	m, err := fileMarker(path)
	if err == nil {
		d.marker = m
		m.Socket = "@mtagd-" + rand.Text()
		var socket net.PacketConn
		if socket, err = net.ListenPacket("unixgram", m.Socket); err == nil {
			d.onClose(socket.Close)
			err = json.NewEncoder(f).Encode(m)
		}
	}
	return errors.Join(err, f.Close())
}

// isOpen reports whether the server that wrote the marker runs on this machine, in this network namespace.
func (m marker) isOpen() bool {
	conn, err := net.Dial("unixgram", m.Socket)
	return err == nil && conn.Close() == nil
}

// fileMarker returns a marker that says which file this is.
func fileMarker(path string) (marker, error) {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &s); err != nil {
		return marker{}, fmt.Errorf("%s: %w", path, err)
	}
	m := marker{Inode: s.Ino}
	if s.Mask&unix.STATX_BTIME != 0 {
		m.Born = s.Btime.Sec*1e9 + int64(s.Btime.Nsec)
	}
	return m, nil
}
