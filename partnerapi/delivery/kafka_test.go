package delivery

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func kafkaCluster(t *testing.T, with ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c := must(kfake.NewCluster(append(with, kfake.NumBrokers(2), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "shop", "secret"))...))
	t.Cleanup(c.Close)
	return c
}

func kafkaBed(t *testing.T, c *kfake.Cluster, topic string) (*bed, Destination) {
	return sinkBed(t, "kafka", "password", map[string]any{"brokers": strings.Join(c.ListenAddrs(), ", "), "topic": topic, "user": "shop", "withoutTLS": true})
}

// readKafka returns the numbers of the first n events of a topic by visitor, in order, and how often each id is there.
func readKafka(t *testing.T, c *kfake.Cluster, topic string, n int) (numbers map[string][]int, ids map[string]int) {
	t.Helper()
	client := must(kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.SASL(scram.Auth{User: "shop", Pass: "secret"}.AsSha512Mechanism())))
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	numbers, ids = map[string][]int{}, map[string]int{}
	for n > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, record := range fetches.Records() {
			var of struct {
				ID    string
				Event struct{ N int } `json:"raw_data"`
			}
			if err := json.Unmarshal(record.Value, &of); err != nil || len(record.Headers) != 1 || string(record.Headers[0].Value) != of.ID {
				t.Errorf("a record %s with headers %v", record.Value, record.Headers)
			}
			numbers[string(record.Key)] = append(numbers[string(record.Key)], of.Event.N)
			ids[of.ID]++
			n--
		}
	}
	return numbers, ids
}

func TestKafkaHasEachEvent(t *testing.T) {
	c := kafkaCluster(t, kfake.SeedTopics(3, "shop"))
	b, d := kafkaBed(t, c, "shop")
	for i := range 300 {
		b.send("m"+string(rune('a'+i%5)), "Purchase", "")
	}
	b.until("all", func() bool { return b.status(d).Delivered == 300 })
	from := time.Now().Add(-time.Hour)
	b.replay(d, Replay{From: &from})
	b.until("all again", func() bool { return b.status(d).Delivered == 600 })
	numbers, ids := readKafka(t, c, "shop", 600)
	for muid, all := range numbers {
		for i, n := range all[:min(len(all), 60)] {
			if want := int(muid[1]-'a') + 1 + 5*i; n != want || len(all) != 120 {
				t.Fatalf("visitor %s has %v", muid, all)
			}
		}
	}
	for id, times := range ids {
		if times != 2 {
			t.Errorf("the id %s is there %d times", id, times)
		}
	}
	if len(numbers) != 5 || len(ids) != 300 {
		t.Errorf("%d visitors, %d ids", len(numbers), len(ids))
	}
}

func TestKafkaIsTriedAgain(t *testing.T) {
	c := kafkaCluster(t)
	b, d := kafkaBed(t, c, "later")
	b.send("m", "Purchase", "")
	b.until("there is no topic", func() bool {
		why := b.status(d).LastError
		return why != nil && strings.Contains(*why, "UNKNOWN_TOPIC")
	})
	if err := c.CreateTopic("later", 1, nil); err != nil {
		t.Fatal(err)
	}
	b.until("it is delivered", func() bool { return b.status(d).Delivered == 1 })
}

// A broker may name others, at addresses that are as forbidden as its own would be. This one is for documentation: nobody is
// there.
func TestKafkaReachesNoPrivateAddress(t *testing.T) {
	c := kafkaCluster(t, kfake.SeedTopics(1, "shop"))
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		answer := r.ResponseKind().(*kmsg.MetadataResponse)
		answer.ControllerID = 7
		answer.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 7, Host: "192.0.2.1", Port: 9092}}
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr("shop")
		topic.Partitions = []kmsg.MetadataResponseTopicPartition{{Leader: 7, Replicas: []int32{7}, ISR: []int32{7}}}
		answer.Topics = append(answer.Topics, topic)
		return answer, nil, true
	})
	b, d := kafkaBed(t, c, "shop")
	b.send("m", "Purchase", "")
	b.until("it fails", func() bool { return b.status(d).LastError != nil })
	if why := *b.status(d).LastError; why != errAddress.Error() {
		t.Errorf("%q, want %q", why, errAddress)
	}
}

func TestKafkaRefusesStrangers(t *testing.T) {
	c := kafkaCluster(t, kfake.SeedTopics(1, "shop"))
	b, d := kafkaBed(t, c, "shop")
	b.change(d, Change{Secrets: map[string]string{"password": "wrong"}})
	b.send("m", "Purchase", "")
	b.until("it fails", func() bool { return b.status(d).LastError != nil })
	if n := b.status(d).Delivered; n != 0 {
		t.Errorf("%d events are delivered", n)
	}
}
