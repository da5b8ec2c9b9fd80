package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// bucket is a Destination in an S3-compatible store.
type bucket struct {
	client *minio.Client
	name   string
	prefix string // empty, or ends with a slash
	text   string
}

// openBucket returns the destination ENDPOINT/BUCKET/PREFIX. Credentials are those of the environment (AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY, or MINIO_ACCESS_KEY and MINIO_SECRET_KEY), of AWS's shared file, or of the machine's role. The region
// is AWS_REGION, if the store needs one.
func openBucket(where string, secure bool) (Destination, error) {
	endpoint, rest, _ := strings.Cut(where, "/")
	name, prefix, _ := strings.Cut(rest, "/")
	if endpoint == "" || name == "" || strings.Contains(endpoint, "@") {
		return nil, errors.New("must have the form s3://ENDPOINT/BUCKET/PREFIX; credentials are taken from the environment")
	}
	client, err := minio.New(endpoint, &minio.Options{
		Secure: secure,
		Region: os.Getenv("AWS_REGION"),
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.EnvMinio{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		}),
	})
	if err != nil {
		return nil, err
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix = path.Clean(prefix) + "/"
	}
	return bucket{client: client, name: name, prefix: prefix, text: "s3://" + where}, nil
}

func (b bucket) String() string { return b.text }

// requestTimeout bounds a request of one object, with its retries: a connection that hangs must not stop all backups.
const requestTimeout = 2 * time.Minute

// Put implements Destination.
func (b bucket) Put(ctx context.Context, name string, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := b.client.PutObject(ctx, b.name, b.prefix+name, bytes.NewReader(content), int64(len(content)),
		minio.PutObjectOptions{SendContentMd5: true, DisableMultipart: true})
	return b.wrap("put", name, err)
}

// Get implements Destination.
func (b bucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object, err := b.client.GetObject(ctx, b.name, b.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.wrap("get", name, err)
	}
	content, err := io.ReadAll(io.LimitReader(object, limit))
	return content, b.wrap("get", name, errors.Join(err, object.Close()))
}

// List implements Destination.
func (b bucket) List(ctx context.Context, prefix string) (found []Stored, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the listing when this returns early
	defer cancel()
	for object := range b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + prefix, Recursive: true}) {
		if object.Err != nil {
			return nil, b.wrap("list", prefix, object.Err)
		}
		found = append(found, Stored{strings.TrimPrefix(object.Key, b.prefix), object.Size})
	}
	return found, nil
}

// Delete implements Destination.
func (b bucket) Delete(ctx context.Context, name string) error {
	return b.wrap("delete", name, b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}))
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
	if answer, ok := errors.AsType[minio.ErrorResponse](err); ok && answer.Code == minio.NoSuchKey {
		return fmt.Errorf("%s %s/%s: %w", what, b, name, fs.ErrNotExist)
	}
	return fmt.Errorf("%s %s in %s: %w", what, name, b, err)
}
