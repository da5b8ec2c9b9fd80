package delivery

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

func natsServer(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.JetStream, o.StoreDir, o.NoLog, o.NoSigs, o.Username, o.Password = "127.0.0.1", -1, true, t.TempDir(), true, true, "shop", "secret"
	s := must(server.NewServer(&o))
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("nats-server does not start")
	}
	return s
}

func TestNATSHasEachEventOnce(t *testing.T) {
	s := natsServer(t, server.Options{})
	b, d := sinkBed(t, "nats", "password", map[string]any{"host": s.Addr().String(), "subject": "shop.events", "user": "shop", "withoutTLS": true})
	b.send("m", "Purchase", "")
	b.until("no stream takes it", func() bool {
		why := b.status(d).LastError
		return why != nil && strings.Contains(*why, "no stream takes the subject")
	})
	c := must(nats.Connect(s.ClientURL(), nats.UserInfo("shop", "secret")))
	t.Cleanup(c.Close)
	js := must(jetstream.New(c))
	stream := must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}, MaxMsgSize: 2000}))
	for range 300 {
		b.send("m", "Purchase", "")
	}
	b.send("m", "Purchase", `,"text":"`+strings.Repeat("x", 3000)+`"`) // which the stream does not take
	b.send("m", "Purchase", "")
	b.until("all but one", func() bool { st := b.status(d); return st.Delivered == 302 && st.Dead == 1 })
	from := time.Now().Add(-time.Hour)
	b.replay(d, Replay{From: &from})
	b.until("all again", func() bool { st := b.status(d); return st.Delivered == 604 && st.Dead == 2 })
	info := must(stream.Info(t.Context()))
	var numbers, want []int
	for seq := range info.State.LastSeq {
		m := must(stream.GetMsg(t.Context(), seq+1))
		var of struct {
			Event struct{ N int } `json:"raw_data"`
		}
		if err := json.Unmarshal(m.Data, &of); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, of.Event.N)
	}
	for n := 1; n <= 303; n++ {
		if n != 302 {
			want = append(want, n)
		}
	}
	if !slices.Equal(numbers, want) {
		t.Errorf("the stream has %v", numbers)
	}
}

// Credentials and TLS are as the server has them.
func TestNATSRefusesStrangers(t *testing.T) {
	user := must(nkeys.CreateUser())
	seed := must(user.Seed())
	creds := fmt.Sprintf("-----BEGIN NATS USER JWT-----\nJWT\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n", seed)
	plain := natsServer(t, server.Options{})
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	secure := natsServer(t, server.Options{TLS: true, TLSTimeout: 10, TLSConfig: &tls.Config{Certificates: certificate.TLS.Certificates}})
	for name, c := range map[string]struct {
		s      *server.Server
		secret string
		plain  bool
		want   string
	}{
		"a wrong token":               {plain, "wrong", true, "Authorization Violation"},
		"wrong credentials":           {plain, creds, true, "Authorization Violation"},
		"credentials that are none":   {plain, "-----BEGIN NATS", true, "the credentials cannot be read"},
		"an unknown authority of TLS": {secure, "secret", false, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			b, d := sinkBed(t, "nats", "password", map[string]any{"host": c.s.Addr().String(), "withoutTLS": c.plain})
			b.change(d, Change{Secrets: map[string]string{"password": c.secret}})
			b.send("m", "Purchase", "")
			b.until("it fails", func() bool { return b.status(d).LastError != nil })
			if why := *b.status(d).LastError; !strings.Contains(why, c.want) {
				t.Errorf("%q, want %q", why, c.want)
			}
		})
	}
}

// A server of a merchant must neither fill the memory nor end the process.
func TestAHostileNATS(t *testing.T) {
	const info = `INFO {"headers":true,"max_payload":1048576}` + "\r\n"
	for name, messages := range map[string]func(n int) string{
		"a message that is too long": func(n int) string { return "PONG\r\nMSG a 1 9000000000000000000\r\nx" },
		"a line that is too long":    func(int) string { return strings.Repeat("x", 1000) },
		"without end":                func(int) string { return "+OK\r\n" },
		"no acknowledgement":         func(int) string { return "PONG\r\nMSG a 1 1\r\nx\r\n" },
	} {
		t.Run(name, func(t *testing.T) {
			l := serve(t, func(c net.Conn) {
				_, err := c.Write([]byte(info))
				for n := 0; err == nil; n++ {
					_, err = c.Write([]byte(messages(n)))
				}
			})
			b, d := sinkBed(t, "nats", "password", map[string]any{"host": l.Addr().String(), "withoutTLS": true})
			b.send("m", "Purchase", "")
			b.until("it fails", func() bool { return b.status(d).LastError != nil })
			why := *b.status(d).LastError
			if !slices.ContainsFunc([]string{"too long", "does not speak NATS", "no answer in time"}, func(one string) bool { return strings.Contains(why, one) }) {
				t.Error(why)
			}
		})
	}
}
