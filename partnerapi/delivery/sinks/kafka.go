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
)

// kafka is a topic of a Kafka cluster. The key of a record is the muid, so that one partition has all events of a visitor,
// in order.
type kafka struct {
	common
	brokers    []string
	topic      string
	sasl       sasl.Mechanism
	withoutTLS bool
}

func openKafka(o kind.Options, v kind.Values) (kind.Target, error) {
	t := &kafka{topic: v.Text("topic"), withoutTLS: v.Flag(withoutTLS)}
	for host := range strings.SplitSeq(v.Text("brokers"), ",") {
		at, err := server(o, v, "brokers", strings.TrimSpace(host), "9092")
		if err != nil {
			return nil, err
		}
		t.brokers = append(t.brokers, at)
	}
	as := scram.Auth{User: v.Text("user"), Pass: o.Secret("password")}
	switch v.Text("mechanism") {
	case sha512:
		t.sasl = as.AsSha512Mechanism()
	case "PLAIN":
		t.sasl = plain.Auth{User: as.User, Pass: as.Pass}.AsMechanism()
	default:
		t.sasl = as.AsSha256Mechanism()
	}
	return t, nil
}

func (t *kafka) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	body, values := lines(events)
	return []kind.Request{{
		URL: "kafka://" + t.brokers[0] + "/" + t.topic, Body: body, Events: events,
		Do: func(ctx context.Context, dial kind.Dial) (kind.Answer, error) {
			return t.produce(ctx, dial, events, values)
		},
	}}, nil
}

// produce writes events by a new idempotent producer, and waits until all in-sync replicas have them. All connections are
// made by dial, because the first broker may name others at any address.
func (t *kafka) produce(ctx context.Context, dial kind.Dial, events []*kind.Event, values [][]byte) (kind.Answer, error) {
	var unreached atomic.Pointer[error] // why the last dial failed: the client's error does not say it
	c, err := kgo.NewClient(kgo.ClientID("mtagd"), kgo.SeedBrokers(t.brokers...), kgo.SASL(t.sasl), kgo.DefaultProduceTopic(t.topic),
		kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := t.connect(ctx, dial, network, address)
			if err != nil {
				unreached.Store(&err)
			}
			return c, err
		}),
		// Small reads: a hostile broker must not fill the memory. Few and quick retries: the service itself tries again.
		kgo.BrokerMaxReadBytes(maxAnswer), kgo.FetchMaxBytes(maxAnswer), kgo.RequestRetries(2), kgo.RecordRetries(2), kgo.UnknownTopicRetries(1),
		kgo.AllowIdempotentProduceCancellation())
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
	if err != nil || t.withoutTLS {
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
