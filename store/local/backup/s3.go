package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"

	"mtagd/store"
)

// bucket is a Destination in an S3-compatible store (https://docs.aws.amazon.com/AmazonS3/latest/API/). The package
// minio-go as a whole would make the program 1.3 MB larger.
type bucket struct {
	address     string // of the bucket, with a slash at the end
	prefix      string // empty, or ends with a slash
	text        string
	region      *atomic.Pointer[string] // as configured, or as the store has answered
	credentials *credentials.Credentials
	client      *http.Client
}

// openBucket returns the destination ENDPOINT/BUCKET/PREFIX. Credentials are those of the environment
// (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or MINIO_ACCESS_KEY and MINIO_SECRET_KEY), of AWS's shared file, or of
// the machine's role. The region is AWS_REGION, or what the store answers.
func openBucket(where string, secure bool) (Destination, error) {
	endpoint, rest, _ := strings.Cut(where, "/")
	name, prefix, _ := strings.Cut(rest, "/")
	scheme := "https"
	if !secure {
		scheme = "http"
	}
	address := scheme + "://" + endpoint + "/" + name + "/"
	u, err := url.Parse(address)
	if err != nil || endpoint == "" || name == "" || u.Host != endpoint || u.Path != "/"+name+"/" {
		return nil, errors.New("must have the form s3://ENDPOINT/BUCKET/PREFIX; credentials are taken from the environment")
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix = path.Clean(prefix) + "/"
	}
	b := bucket{
		address: address, prefix: prefix, text: "s3://" + where, region: &atomic.Pointer[string]{},
		client: &http.Client{Timeout: attemptTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a PUT would become a GET, and what that finds look like success
		}},
		credentials: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.EnvMinio{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		}),
	}
	region := cmp.Or(os.Getenv("AWS_REGION"), "us-east-1")
	b.region.Store(&region)
	return b, nil
}

func (b bucket) String() string { return b.text }

// Bounds of requests: a connection that hangs must not stop all backups.
const (
	attemptTimeout = time.Minute
	requestTimeout = 2 * time.Minute // with all attempts
	maxAttempts    = 8
	maxAnswer      = 8 << 20 // bytes of a listing or an error
)

// do sends a request, again while the store is busy or away, and returns the body of a 2xx answer, up to limit bytes.
func (b bucket) do(ctx context.Context, method, name string, query url.Values, content []byte, limit int64) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for attempt := range maxAttempts {
		if attempt > 0 {
			if ended := store.Sleep(ctx, 200*time.Millisecond<<(attempt-1)); ended != nil {
				return nil, cmp.Or(err, ended)
			}
		}
		var again bool
		if body, again, err = b.try(ctx, method, name, query, content, limit); !again {
			break
		}
	}
	return body, err
}

func (b bucket) try(ctx context.Context, method, name string, query url.Values, content []byte, limit int64) (body []byte, again bool, err error) {
	address := b.address + (&url.URL{Path: name}).EscapedPath()
	r, err := http.NewRequestWithContext(ctx, method, address+"?"+query.Encode(), bytes.NewReader(content))
	if err != nil {
		return nil, false, err
	}
	who, err := b.credentials.GetWithContext(&credentials.CredContext{Client: http.DefaultClient, Context: ctx})
	if err != nil {
		return nil, false, err
	}
	sum := sha256.Sum256(content)
	r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	if method == http.MethodPut { // buckets with object lock insist on it
		sum := md5.Sum(content)
		r.Header.Set("Content-MD5", base64.StdEncoding.EncodeToString(sum[:]))
	}
	region := b.region.Load()
	answer, err := b.client.Do(signer.SignV4(*r, who.AccessKeyID, who.SecretAccessKey, who.SessionToken, *region))
	if err != nil {
		return nil, true, err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 == 2 {
		body, err = io.ReadAll(io.LimitReader(answer.Body, limit))
		return body, err != nil, err
	}
	var refusal refusal
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil || xml.Unmarshal(text, &refusal) != nil {
		refusal.Message = answer.Status
	}
	if other := answer.Header.Get("X-Amz-Bucket-Region"); other != "" && other != *region {
		b.region.Store(&other)
		return nil, true, refusal
	}
	busy := answer.StatusCode >= 500 && answer.StatusCode != http.StatusNotImplemented
	return nil, busy || answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusRequestTimeout, refusal
}

// refusal is an error of the store.
type refusal struct {
	Code    string
	Message string
}

func (r refusal) Error() string { return strings.TrimSpace(r.Code + " " + r.Message) }

// Put implements Destination.
func (b bucket) Put(ctx context.Context, name string, content []byte) error {
	_, err := b.do(ctx, http.MethodPut, b.prefix+name, nil, content, maxAnswer)
	return b.wrap("put", name, err)
}

// Get implements Destination.
func (b bucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	content, err := b.do(ctx, http.MethodGet, b.prefix+name, nil, nil, limit)
	return content, b.wrap("get", name, err)
}

// List implements Destination.
func (b bucket) List(ctx context.Context, prefix string) (found []Stored, err error) {
	query := url.Values{"list-type": {"2"}, "prefix": {b.prefix + prefix}}
	for {
		text, err := b.do(ctx, http.MethodGet, "", query, nil, maxAnswer)
		if err != nil {
			return nil, b.wrap("list", prefix, err)
		}
		var page struct {
			XMLName  xml.Name `xml:"ListBucketResult"` // anything else is no empty listing
			Contents []struct {
				Key  string
				Size int64
			}
			IsTruncated           bool
			NextContinuationToken string
		}
		if err := xml.Unmarshal(text, &page); err != nil {
			return nil, b.wrap("list", prefix, err)
		}
		for _, object := range page.Contents {
			found = append(found, Stored{strings.TrimPrefix(object.Key, b.prefix), object.Size})
		}
		if !page.IsTruncated {
			return found, nil
		}
		if page.NextContinuationToken == "" {
			return nil, b.wrap("list", prefix, errors.New("the listing ends early"))
		}
		query.Set("continuation-token", page.NextContinuationToken)
	}
}

// Delete implements Destination.
func (b bucket) Delete(ctx context.Context, name string) error {
	_, err := b.do(ctx, http.MethodDelete, b.prefix+name, nil, nil, maxAnswer)
	return b.wrap("delete", name, err)
}

// Lock implements Destination: S3 has no locks.
func (b bucket) Lock(context.Context, string) (unlock func() error, err error) {
	return func() error { return nil }, nil
}

// wrap adds what was done to an error.
func (b bucket) wrap(what, name string, err error) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[refusal](err); ok && answer.Code == "NoSuchKey" {
		return fmt.Errorf("%s %s/%s: %w", what, b, name, fs.ErrNotExist)
	}
	return fmt.Errorf("%s %s in %s: %w", what, name, b, err)
}
