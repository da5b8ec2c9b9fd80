package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// kafka is a topic of a Kafka cluster. The key of a record is the muid, so that one partition has all events of a visitor,
// in order.
type kafka struct {
	Brokers    string `json:"brokers"`
	Topic      string `json:"topic"`
	User       string `json:"user"`
	Mechanism  string `json:"mechanism"`
	WithoutTLS bool   `json:"withoutTLS"` // only in tests and in networks that the operator allows

	brokers []string
	sasl    sasl.Mechanism
}

func openKafka(o kind.Options) (kind.Target, error) {
	t := &kafka{Topic: "events", Mechanism: "SCRAM-SHA-512"}
	if err := o.Decode(t); err != nil {
		return nil, err
	}
	for host := range strings.SplitSeq(t.Brokers, ",") {
		at, err := checkHost("brokers", strings.TrimSpace(host), "9092", t.WithoutTLS, o)
		if err != nil {
			return nil, err
		}
		t.brokers = append(t.brokers, at)
	}
	if t.Topic == "" || len(t.Topic) > 249 || !isPath(t.Topic) || strings.ContainsAny(t.Topic, "/=") {
		return nil, store.Invalid("settings.topic", "must be the name of a topic")
	}
	if t.User == "" {
		return nil, store.Invalid("settings.user", "is required")
	}
	as := scram.Auth{User: t.User, Pass: o.Secret("password")}
	switch t.Mechanism {
	case "SCRAM-SHA-512":
		t.sasl = as.AsSha512Mechanism()
	case "SCRAM-SHA-256":
		t.sasl = as.AsSha256Mechanism()
	case "PLAIN":
		t.sasl = plain.Auth{User: as.User, Pass: as.Pass}.AsMechanism()
	default:
		return nil, store.Invalid("settings.mechanism", "must be SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN")
	}
	return t, nil
}

func (t *kafka) Limits() kind.Limits { return limits(time.Second) }

func (t *kafka) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	body, values := lines(events)
	return []kind.Request{{
		URL: "kafka://" + t.brokers[0] + "/" + t.Topic, Body: body, Events: all(len(events)),
		Do: func(ctx context.Context, dial kind.Dial) (kind.Answer, error) {
			return t.produce(ctx, dial, events, values)
		},
	}}, nil
}

// produce writes events by a new idempotent producer, and waits until all in-sync replicas have them. All connections are
// made by dial, because the first broker may name others at any address.
func (t *kafka) produce(ctx context.Context, dial kind.Dial, events []*kind.Event, values [][]byte) (kind.Answer, error) {
	var unreached atomic.Pointer[error] // why the last dial failed: the client's error does not say it
	c, err := kgo.NewClient(kgo.ClientID("mtagd"), kgo.SeedBrokers(t.brokers...), kgo.SASL(t.sasl), kgo.DefaultProduceTopic(t.Topic),
		kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := t.connect(ctx, dial, network, address)
			if err != nil {
				unreached.Store(&err)
			}
			return c, err
		}),
		// Small reads: a hostile broker must not fill the memory. Few retries: the service itself tries again.
		kgo.BrokerMaxReadBytes(maxAnswer), kgo.FetchMaxBytes(maxAnswer), kgo.RequestRetries(2), kgo.RecordRetries(2), kgo.UnknownTopicRetries(1), kgo.AllowIdempotentProduceCancellation())
	if err != nil {
		return kind.Answer{}, err
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		return answerOfKafka(err)
	}
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = &kgo.Record{
			Key: []byte(e.MUID), Value: values[i], Timestamp: e.ReceivedAt,
			Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(e.ID)}},
		}
	}
	if err := c.ProduceSync(ctx, records...).FirstErr(); err != nil {
		if why := unreached.Load(); why != nil && errors.Is(err, kgo.ErrRecordRetries) {
			err = *why
		}
		return answerOfKafka(err)
	}
	return kind.Answer{Status: http.StatusOK}, nil
}

func (t *kafka) connect(ctx context.Context, dial kind.Dial, network, address string) (net.Conn, error) {
	c, err := dial(ctx, network, address)
	if err != nil || t.WithoutTLS {
		return c, err
	}
	host, _, _ := net.SplitHostPort(address)
	secure := tls.Client(c, &tls.Config{ServerName: host})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return secure, nil
}

// answerOfKafka translates an error that a broker answers to an HTTP answer. Other errors stay errors.
func answerOfKafka(err error) (kind.Answer, error) {
	refused, is := errors.AsType[*kerr.Error](err)
	if !is {
		return kind.Answer{}, err
	}
	status := http.StatusServiceUnavailable
	if refused == kerr.MessageTooLarge || refused == kerr.RecordListTooLarge || refused == kerr.InvalidRecord { // a smaller request may pass
		status = http.StatusRequestEntityTooLarge
	}
	return kind.Answer{Status: status, Body: []byte(refused.Error())}, nil
}

func (t *kafka) Read(_ kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	v.Reason = string(a.Body)
	return v
}
