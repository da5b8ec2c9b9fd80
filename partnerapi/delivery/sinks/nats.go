package sinks

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"mtagd/partnerapi/delivery/kind"
)

// nats publishes each event to a subject of a JetStream stream. It speaks the client protocol itself
// (https://docs.nats.io/reference/reference-protocols/nats-protocol, read 2026-11), because the library nats.go (1.55) makes
// room for as much as a message claims to have, in a goroutine of its own: a server that claims too much ends this process.
type nats struct {
	common
	address, subject, user string
	password               string // the user's password, a token, or the content of a .creds file
	withoutTLS             bool
}

func openNATS(o kind.Options, v kind.Values) (kind.Target, error) {
	address, err := server(o, v, "host", v.Text("host"), "4222")
	return &nats{common{}, address, v.Text("subject"), v.Text("user"), o.Secret("password"), v.Flag(withoutTLS)}, err
}

func (t *nats) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	body, messages := lines(events)
	return []kind.Request{{
		URL: "nats://" + t.address + "/" + t.subject, Body: body, Events: events,
		Do: func(ctx context.Context, dial kind.Dial) (kind.Answer, error) {
			return t.publish(ctx, dial, events, messages)
		},
	}}, nil
}

// Read implements kind.Target. The body of a success has the refused events.
func (t *nats) Read(r kind.Request, a kind.Answer) kind.Verdict {
	v := t.common.Read(r, a)
	if v.Outcome == kind.Done && json.Unmarshal(a.Body, &v.Refused) != nil {
		v.Outcome = kind.Again
	}
	return v
}

// publish publishes events on a new connection, in order, and waits until all are acknowledged. When the stream refuses one,
// all are sent again later, and the stream drops those that it has.
func (t *nats) publish(ctx context.Context, dial kind.Dial, events []*kind.Event, messages [][]byte) (kind.Answer, error) {
	raw, err := dial(ctx, "tcp", t.address)
	if err != nil {
		return kind.Answer{}, err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Now()) }) // fails only if it is closed
	defer stop()
	c := &natsConn{Conn: &boundedConn{raw, 1 << 20}}
	if err := c.open(ctx, t); err != nil {
		return answerOfNATS(err)
	}
	inbox := "_INBOX." + rand.Text() + "."
	refused := map[int]string{}
	out := bufio.NewWriter(c)
	fmt.Fprintf(out, "SUB %s* 1\r\n", inbox) // Flush returns the error
	for i, e := range events {
		header := "NATS/1.0\r\nNats-Msg-Id: " + string(e.ID) + "\r\n\r\n"
		size := len(header) + len(messages[i])
		if int64(size) > c.info.MaxPayload {
			refused[i] = "it is larger than the server takes"
			continue
		}
		fmt.Fprintf(out, "HPUB %s %s%d %d %d\r\n%s%s\r\n", t.subject, inbox, i, len(header), size, header, messages[i])
	}
	if err := out.Flush(); err != nil {
		return kind.Answer{}, err
	}
	for stored := map[int]bool{}; len(stored)+len(refused) < len(events); {
		subject, content, err := c.next()
		if err != nil {
			return answerOfNATS(err)
		}
		i, err := strconv.Atoi(strings.TrimPrefix(subject, inbox))
		if err != nil || i < 0 || i >= len(events) {
			return kind.Answer{}, errNATS
		}
		var ack struct {
			Stream string
			Error  *struct {
				Code        int `json:"err_code"`
				Description string
			}
		}
		const tooLarge = 10054 // JSStreamMessageExceedsMaximumErr
		switch err := json.Unmarshal(content, &ack); {
		case err == nil && ack.Stream != "" && ack.Error == nil:
			stored[i] = true
		case err == nil && ack.Error != nil && ack.Error.Code == tooLarge:
			refused[i] = ack.Error.Description
		case err == nil && ack.Error != nil:
			return answerOfNATS(natsError(ack.Error.Description))
		default:
			return answerOfNATS(natsError("no stream takes the subject"))
		}
	}
	body, err := json.Marshal(refused)
	return kind.Answer{Status: http.StatusOK, Body: body}, err
}

// natsConn is a connection to a NATS server.
type natsConn struct {
	net.Conn
	in   *bufio.Reader
	info struct {
		Nonce      string
		Headers    bool
		MaxPayload int64 `json:"max_payload"`
	}
}

// natsError is an error that a server answers.
type natsError string

func (e natsError) Error() string { return string(e) }

var errNATS = errors.New("the server does not speak NATS")

func answerOfNATS(err error) (kind.Answer, error) {
	if text, is := errors.AsType[natsError](err); is {
		return kind.Answer{Status: http.StatusServiceUnavailable, Body: []byte(text)}, nil
	}
	return kind.Answer{}, err
}

// open starts TLS, and introduces this client.
func (c *natsConn) open(ctx context.Context, t *nats) error {
	const longest = 32 << 10 // bytes of a line; INFO may list many servers
	c.in = bufio.NewReaderSize(c, longest)
	line, err := c.line()
	if err != nil {
		return err
	}
	text, is := bytes.CutPrefix(line, []byte("INFO "))
	if !is || json.Unmarshal(text, &c.info) != nil || !c.info.Headers {
		return errNATS
	}
	if !t.withoutTLS {
		if c.in.Buffered() > 0 { // these bytes came before TLS: someone on the way may have added them
			return errNATS
		}
		host, _, _ := net.SplitHostPort(t.address)
		secure := tls.Client(c.Conn, &tls.Config{ServerName: host})
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		c.Conn = secure
		c.in.Reset(c)
	}
	hello := map[string]any{"lang": "go", "version": "1", "name": "mtagd", "protocol": 1, "headers": true, "no_responders": true, "echo": false, "tls_required": !t.withoutTLS}
	if err := t.authenticate(hello, c.info.Nonce); err != nil {
		return err
	}
	first, err := json.Marshal(hello)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s\r\nPING\r\n", first); err != nil {
		return err
	}
	for string(line) != "PONG" {
		if line, err = c.line(); err != nil {
			return err
		}
	}
	return nil
}

// authenticate adds the credentials to CONNECT.
func (t *nats) authenticate(hello map[string]any, nonce string) error {
	switch {
	case strings.HasPrefix(t.password, "-----BEGIN NATS"):
		jwt, err := nkeys.ParseDecoratedJWT([]byte(t.password))
		key, wrong := nkeys.ParseDecoratedNKey([]byte(t.password))
		if err != nil || wrong != nil {
			return natsError("the credentials cannot be read")
		}
		signature, err := key.Sign([]byte(nonce))
		if err != nil {
			return err
		}
		hello["jwt"], hello["sig"] = jwt, base64.RawURLEncoding.EncodeToString(signature)
	case t.user != "":
		hello["user"], hello["pass"] = t.user, t.password
	default:
		hello["auth_token"] = t.password
	}
	return nil
}

// line returns the next line, without its end. It answers a PING.
func (c *natsConn) line() ([]byte, error) {
	for {
		line, err := c.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, errTooLong
		} else if err != nil {
			return nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if text, is := bytes.CutPrefix(line, []byte("-ERR ")); is {
			return nil, natsError(bytes.Trim(text, "'"))
		}
		if string(line) != "PING" {
			return line, nil
		}
		if _, err := io.WriteString(c, "PONG\r\n"); err != nil {
			return nil, err
		}
	}
}

// next returns the next message. A message with headers says that no stream has the subject: its content is empty.
func (c *natsConn) next() (subject string, content []byte, err error) {
	const longest = 64 << 10 // bytes of a message
	for {
		line, err := c.line()
		if err != nil {
			return "", nil, err
		}
		fields := strings.Fields(string(line))
		if len(fields) < 4 || fields[0] != "MSG" && fields[0] != "HMSG" {
			continue // INFO, +OK
		}
		size, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil || size < 0 || size > longest {
			return "", nil, errTooLong
		}
		content = make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(c.in, content); err != nil {
			return "", nil, err
		}
		if fields[0] == "HMSG" {
			return fields[1], nil, nil
		}
		return fields[1], content[:size], nil
	}
}
