package sinks

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/signer"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
)

// s3 writes Parquet files to an S3-compatible store, in a partition for each hour of receipt (UTC):
// PREFIX/date=2026-11-26/hour=03/TOKEN.parquet. The token is derived from the events, so a replay of some of them does not
// replace a file that has more.
type s3 struct {
	common
	endpoint, bucket, prefix, region, accessKeyID, secret string
}

func openS3(o kind.Options, v kind.Values) (kind.Target, error) {
	t := &s3{common{}, strings.TrimRight(v.Text("endpoint"), "/"), v.Text("bucket"), strings.Trim(v.Text("prefix"), "/"), v.Text("region"), v.Text("accessKeyId"), o.Secret("secretAccessKey")}
	return t, o.CheckURL("endpoint", t.endpoint)
}

// Limits implements kind.Target. Fewer files are read faster.
func (t *s3) Limits() kind.Limits {
	l := t.common.Limits()
	l.Wait = time.Minute
	return l
}

func (t *s3) Requests(events []*kind.Event, _ time.Time) (requests []kind.Request, refused []kind.Refusal) {
	hour := func(i int) string { return events[i].ReceivedAt.UTC().Format("date=2006-01-02/hour=15") }
	for from, to := 0, 0; from < len(events); from = to {
		for to = from + 1; to < len(events) && hour(to) == hour(from); to++ {
		}
		part := events[from:to]
		body, err := parquet(part)
		if err != nil { // fails only if zstd does
			for _, e := range part {
				refused = append(refused, kind.Refusal{Event: e, Reason: err.Error()})
			}
			continue
		}
		key := strings.TrimPrefix(t.prefix+"/"+hour(from)+"/"+token(part)+".parquet", "/")
		requests = append(requests, t.put(key, body, part))
	}
	return requests, refused
}

func parquet(events []*kind.Event) ([]byte, error) {
	var file bytes.Buffer
	w := export.NewWriter(export.Parquet, &file)
	for _, e := range events {
		if err := w.Write(&e.Received); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return file.Bytes(), err
}

// put returns a signed request.
func (t *s3) put(key string, body []byte, events []*kind.Event) kind.Request {
	address := t.endpoint + "/" + t.bucket + "/" + key
	r, err := http.NewRequest(http.MethodPut, address, bytes.NewReader(body))
	if err != nil {
		return kind.Request{URL: address, Events: events} // Open has checked the address
	}
	sum := sha256.Sum256(body)
	r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	r.Header.Set("Content-Type", export.Parquet.ContentType())
	r = signer.SignV4(*r, t.accessKeyID, t.secret, "", t.region)
	return kind.Request{Method: http.MethodPut, URL: address, Header: r.Header, Body: body, Events: events}
}

// Read implements kind.Target. A file is never the fault of one event.
func (t *s3) Read(r kind.Request, a kind.Answer) kind.Verdict {
	v := t.common.Read(r, a)
	if v.Outcome == kind.Refused {
		v.Outcome = kind.Again
	}
	return v
}
