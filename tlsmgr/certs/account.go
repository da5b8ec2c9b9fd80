package certs

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"golang.org/x/sync/semaphore"
)

// account is the service's ACME account at the CA. Only its key is stored: each process asks the CA for the account.
type account struct {
	client  *acme.Client
	storage certmagic.Storage
	keyFile string
	email   string    // in lower case; may be empty
	eab     *acme.EAB // nil: none

	one        *semaphore.Weighted // held while the account is read or registered
	registered *acme.Account       // nil until the CA has been asked
}

func newAccount(cfg Config, client *acme.Client, storage certmagic.Storage, issuerKey string) *account {
	a := &account{client: client, storage: storage, email: strings.ToLower(cfg.Email), one: semaphore.NewWeighted(1)}
	if cfg.EABKeyID != "" {
		a.eab = &acme.EAB{KeyID: cfg.EABKeyID, MACKey: cfg.EABHMACKey}
	}
	safe := certmagic.StorageKeys.Safe
	user := cmp.Or(a.email, "default")
	name, _, _ := strings.Cut(user, "@")
	a.keyFile = path.Join("acme", safe(issuerKey), "users", safe(user), safe(name)+".key")
	return a
}

// open returns the account, which it registers first if needed. again: the CA no longer knows the account.
func (a *account) open(ctx context.Context, again bool) (acme.Account, error) {
	if err := a.one.Acquire(ctx, 1); err != nil {
		return acme.Account{}, err
	}
	defer a.one.Release(1)
	if a.registered == nil || again {
		a.registered = nil
		registered, err := a.register(ctx)
		if err != nil {
			return acme.Account{}, fmt.Errorf("registering account: %w", err)
		}
		a.registered = &registered
	}
	return *a.registered, nil
}

// register returns the account of the key on disk. If the key has none, register makes one.
//
// It first asks whether there is one (RFC 8555, 7.3.1). A plain registration would return it too. But some CAs accept an
// external account binding only once, and would refuse the registration after every restart.
func (a *account) register(ctx context.Context) (_ acme.Account, err error) {
	if err := a.storage.Lock(ctx, a.keyFile); err != nil { // all nodes have the same account
		return acme.Account{}, err
	}
	defer func() { err = cmp.Or(err, a.storage.Unlock(context.WithoutCancel(ctx), a.keyFile)) }()
	key, err := a.key(ctx)
	if err != nil {
		return acme.Account{}, err
	}
	existing, err := a.client.GetAccount(ctx, acme.Account{PrivateKey: key})
	if problem, ok := errors.AsType[acme.Problem](err); !ok || problem.Type != acme.ProblemTypeAccountDoesNotExist {
		return existing, err
	}
	wanted := acme.Account{PrivateKey: key, TermsOfServiceAgreed: true}
	if a.email != "" {
		wanted.Contact = []string{"mailto:" + a.email}
	}
	if a.eab != nil {
		if err := wanted.SetExternalAccountBinding(ctx, a.client, *a.eab); err != nil {
			return acme.Account{}, err
		}
	}
	return a.client.NewAccount(ctx, wanted)
}

// key returns the account's key. It makes one when there is none on disk.
func (a *account) key(ctx context.Context) (crypto.Signer, error) {
	text, err := a.storage.Load(ctx, a.keyFile)
	if err == nil {
		return certmagic.PEMDecodePrivateKey(text)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if text, err = certmagic.PEMEncodePrivateKey(key); err != nil {
		return nil, err
	}
	if err := stillLocked(ctx, a.storage, a.keyFile); err != nil { // another node stores a key now, and registers it
		return nil, err
	}
	return key, a.storage.Store(ctx, a.keyFile, text)
}

// directoryTimeout bounds a read of the CA's directory. Meanwhile the acme package begins no order.
const directoryTimeout = 10 * time.Second

// CAAIdentities returns the names that CAA records may use for the CA (RFC 8555, section 7.1.1, caaIdentities). It returns
// none if the CA's directory lists none, or cannot be read before ctx ends. The read then goes on for other calls. The acme
// package keeps what it has read for half a day, for all clients.
func (c *Certificates) CAAIdentities(ctx context.Context) []string {
	read := c.directory.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), directoryTimeout)
		defer cancel()
		client := acme.Client{Directory: c.CA, HTTPClient: c.ca.client.HTTPClient} // a new one: a client never reads its directory again
		directory, err := client.GetDirectory(ctx)
		if err != nil {
			c.Log.Warn("the CA's directory cannot be read, so CAA records are not checked", "directory", c.CA, "error", err)
		}
		if directory.Meta == nil {
			return []string(nil), nil
		}
		return directory.Meta.CAAIdentities, nil
	})
	select {
	case got := <-read:
		return got.Val.([]string)
	case <-ctx.Done():
		return nil
	}
}
