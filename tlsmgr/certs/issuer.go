package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// caTimeout limits one request to the CA.
const caTimeout = 30 * time.Second

// issuer gets certificates from the CA by the ACME protocol (RFC 8555). It is the certmagic.Issuer of all orders and
// renewals. Certmagic's own ACMEIssuer tries two types of challenge in one attempt, does not say how many validations
// failed, and drops the CA's Retry-After.
type issuer struct {
	client     *acme.Client
	account    *account
	challenges *challenges
	limits     *limits
	turns      *turns
	allowance  *allowance
	storage    certmagic.Storage
	pace       pace
	key        string // names the CA in the paths of files

	// replaces makes an order name the certificate that it replaces, if there is one. Let's Encrypt's limits do not
	// apply to such an order (RFC 9773, 5), but some CAs refuse it (see isRefusedOrder).
	replaces bool
}

func newIssuer(cfg Config, p pace, storage certmagic.Storage) issuer {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: cfg.Roots}
	client := &acme.Client{
		Directory:   cfg.CA,
		HTTPClient:  &http.Client{Transport: noteRetryAfter{transport}, Timeout: caTimeout},
		UserAgent:   "mtagd",
		PollTimeout: p.order,
	}
	key := (&certmagic.ACMEIssuer{CA: cfg.CA}).IssuerKey()
	turns := newTurns(newOrderLimiter(cfg.CA), ordersAtOnce)
	return issuer{
		client: client, account: newAccount(cfg, client, storage, key), challenges: newChallenges(cfg.Shared),
		limits: newLimits(storage), turns: turns, allowance: newAllowance(storage, key, turns), storage: storage, pace: p, key: key,
	}
}

func (i issuer) IssuerKey() string { return i.key }

// GetRenewalInfo implements certmagic.RenewalInfoGetter (ARI, RFC 9773).
func (i issuer) GetRenewalInfo(ctx context.Context, cert certmagic.Certificate) (acme.RenewalInfo, error) {
	return i.client.GetRenewalInfo(ctx, cert.Leaf)
}

// Issue implements certmagic.Issuer: it makes one attempt with one type of challenge. Certmagic's locks let only one
// attempt for a host run at a time. The error is an errCounted if the CA may have counted the attempt.
func (i issuer) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if len(csr.DNSNames) != 1 {
		return nil, certmagic.ErrNoRetry{Err: fmt.Errorf("certs: the request has %d names, and must have one", len(csr.DNSNames))}
	}
	host := csr.DNSNames[0]
	failed, failures, err := i.limits.load(ctx, host)
	if err != nil {
		return nil, certmagic.ErrNoRetry{Err: err}
	}
	pause := failed.Add(i.pace.afterFailures(failures)) // another node has failed: one pause for all
	for _, next := range []time.Time{pause, i.nextTry(host)} {
		if time.Now().Before(next) {
			return nil, certmagic.ErrNoRetry{Err: errTooSoon{next}}
		}
	}
	if err := stillLocked(ctx, i.storage, issueLock(host)); err != nil {
		return nil, certmagic.ErrNoRetry{Err: err}
	}
	tried, isOrder := ctx.Value(attemptKey{}).(*attempt)
	if !isOrder {
		tried = &attempt{}
		ctx = context.WithValue(ctx, attemptKey{}, tried)
	}
	tried.asked = true
	if isOrder {
		if err := i.allowance.add(ctx, -1); err != nil {
			return nil, certmagic.ErrNoRetry{Err: err}
		}
	}
	challenge := i.limits.challenge(host)
	solving := &solver{challenges: i.challenges}
	chain, err := i.obtain(ctx, csr, host, map[string]acmez.Solver{challenge: solving})
	if err != nil {
		err = i.noteFailure(ctx, host, challenge, err, solving.presented, tried.refused)
		if _, counted := errors.AsType[errCounted](err); isOrder && !counted {
			err = errors.Join(err, i.allowance.giveBack(ctx))
		}
		return nil, err
	}
	if solving.presented {
		if err := i.limits.succeeded(ctx, host, challenge); err != nil {
			return nil, err
		}
	}
	if err := stillLocked(ctx, i.storage, issueLock(host)); err != nil { // another node stores a key and a certificate now: they must not mix with these
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: chain.ChainPEM, Metadata: chain}, nil
}

// stillLocked makes sure that this node still has a lock: while it was away from the store, another may have got it.
func stillLocked(ctx context.Context, storage certmagic.Storage, lock string) error {
	renewer, ok := storage.(certmagic.LockLeaseRenewer)
	if !ok {
		return nil
	}
	return renewer.RenewLockLease(ctx, lock, 0)
}

// issueLock is certmagic's name for the lock of a host's orders and renewals.
func issueLock(host string) string { return "issue_cert_" + host }

// attempt notes what acmez and certmagic do not return of one attempt at the CA. It is in the context of the attempt.
// Renewals by certmagic's timer begin without one, because they have no turns.
type attempt struct {
	asked   bool    // the CA was asked
	refused refusal // the last one
}

type attemptKey struct{}

// nextTry returns when the CA allows the next attempt for a host; a time in the past when it does now.
func (i issuer) nextTry(host string) time.Time {
	return later(i.limits.nextTry(host), i.turns.refused())
}

// obtain orders a certificate. If the CA does not know the account any more, obtain registers it and orders again.
func (i issuer) obtain(ctx context.Context, csr *x509.CertificateRequest, host string, solvers map[string]acmez.Solver) (acme.Certificate, error) {
	chain, err := i.obtainOnce(ctx, csr, host, solvers, false)
	if problem, ok := errors.AsType[acme.Problem](err); ok && problem.Type == acme.ProblemTypeAccountDoesNotExist {
		return i.obtainOnce(ctx, csr, host, solvers, true)
	}
	return chain, err
}

func (i issuer) obtainOnce(ctx context.Context, csr *x509.CertificateRequest, host string, solvers map[string]acmez.Solver, again bool) (acme.Certificate, error) {
	account, err := i.account.open(ctx, again)
	if err != nil {
		return acme.Certificate{}, err
	}
	params, err := acmez.OrderParametersFromCSR(account, csr)
	if err != nil {
		return acme.Certificate{}, err
	}
	if i.replaces {
		params.Replaces = i.certificateOnDisk(ctx, host)
	}
	client := acmez.Client{Client: i.client, ChallengeSolvers: solvers}
	chains, err := client.ObtainCertificate(ctx, params)
	if err != nil {
		return acme.Certificate{}, err
	}
	if len(chains) == 0 {
		return acme.Certificate{}, errors.New("certs: the CA sent no certificate")
	}
	return chains[0], nil // the CA's default chain
}

// certificateOnDisk returns the certificate that the CA has issued for a host before. It is nil when there is none that
// can be read: then the order replaces nothing.
func (i issuer) certificateOnDisk(ctx context.Context, host string) *x509.Certificate {
	text, _ := i.storage.Load(ctx, certmagic.StorageKeys.SiteCert(i.key, host))
	block, _ := pem.Decode(text)
	if block == nil {
		return nil
	}
	cert, _ := x509.ParseCertificate(block.Bytes) // nil with an error
	return cert
}

// noteFailure notes what a failed attempt means for the next ones, and marks the error if the CA may have counted it.
// An attempt counts if the CA may have begun a validation. It also counts if the CA has refused the order as such: that
// must not be repeated without end either. It does not count if the CA is down, or only says that it is too early.
func (i issuer) noteFailure(ctx context.Context, host, challenge string, err error, presented bool, refused refusal) error {
	problem, _ := errors.AsType[acme.Problem](err)
	notOffered := strings.Contains(err.Error(), "no solvers available")
	if presented || notOffered {
		challenge = otherChallenge(challenge)
	}
	if concernsAllHosts(problem, refused) {
		i.turns.refuseUntil(refused.until)
		refused.until = time.Time{}
	}
	refusedOrder := problem.Status >= 400 && problem.Status < 500 && !isRateLimited(problem)
	counted := presented || notOffered || refusedOrder
	err = errors.Join(err, i.limits.failed(ctx, host, challenge, counted, refused.until))
	if counted {
		return errCounted{err}
	}
	return err
}

// concernsAllHosts reports whether the CA refuses the orders of all hosts: because it is overloaded, or because of a
// limit on the account. Only Let's Encrypt's messages about the account count. In doubt, one host is delayed: a partner
// can cause limits of its own hosts, such as the one on orders for the same name, and must not delay others.
func concernsAllHosts(problem acme.Problem, refused refusal) bool {
	return refused.status == http.StatusServiceUnavailable ||
		strings.HasPrefix(problem.Detail, "too many new orders") ||
		strings.HasPrefix(problem.Detail, "too many new registrations") ||
		strings.HasPrefix(problem.Detail, "Service busy")
}
