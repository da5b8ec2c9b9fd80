package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// byOperator returns the context of a command that a system user runs.
func byOperator(ctx context.Context, user string) context.Context {
	return store.WithActor(ctx, store.Actor{Kind: store.ByOperator, Name: user})
}

// peer returns the name of the system user at the other end of a unix socket, as the kernel knows it.
func peer(conn net.Conn) (string, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return "", errors.New("not a unix socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return "", err
	}
	var credentials *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		credentials, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failure); err != nil {
		return "", err
	}
	return userName(int(credentials.Uid), int(credentials.Pid)), nil
}

// ownName returns the name of the user that this process runs as.
func ownName() string { return userName(os.Geteuid(), os.Getpid()) }

// userName returns the name of a process's user. If somebody logged in as another user and then changed to this one, as
// with sudo, it is "ann (as mtagd)". The kernel keeps the login's user where a login sets it.
func userName(uid, pid int) string {
	name := nameOf(uid)
	login, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", pid))
	if err != nil {
		return name
	}
	const unset = 1<<32 - 1
	id, err := strconv.ParseUint(strings.TrimSpace(string(login)), 10, 32)
	if err != nil || id == unset || int(id) == uid {
		return name
	}
	return nameOf(int(id)) + " (as " + name + ")"
}

func nameOf(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "uid " + strconv.Itoa(uid)
}
