package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"mtagd/store"
)

// An operatorCommand is a partner or key command: its flags, the message that carries them to a
// running server, and what is done there. Without a server the command does the same to the opened
// control data. One that can be wrong in itself has a method Validate, which the command line's parser calls.
type operatorCommand interface {
	// path names the command on the operator socket.
	path() string
	// apply carries the command out and returns what is printed, as a value for JSON.
	apply(ctx context.Context, control store.Control) (any, error)
}

type partnerCommand struct {
	Add       partnerAdd       `cmd:"" help:"Create a partner."`
	List      partnerList      `cmd:"" help:"List all partners."`
	Preverify partnerPreverify `cmd:"" help:"Give a partner preverified access at its tracking domain, or move it to another one."`
}

type keyCommand struct {
	Issue  keyIssue  `cmd:"" help:"Issue an API key; its text is shown this once."`
	List   keyList   `cmd:"" help:"List a partner's API keys."`
	Revoke keyRevoke `cmd:"" help:"Revoke an API key, from the next request on."`
}

type partnerAdd struct {
	Name string `required:"" placeholder:"NAME" help:"Name of the partner, 1 to 256 characters."`
}

func (partnerAdd) path() string { return "/partner/add" }

func (c partnerAdd) Validate() error {
	_, err := store.CheckName("--name", c.Name)
	return err
}

func (c partnerAdd) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := control.AddPartner(ctx, c.Name)
	return viewPartner(p), err
}

type partnerList struct{}

func (partnerList) path() string { return "/partner/list" }

func (partnerList) apply(ctx context.Context, control store.Control) (any, error) {
	partners, err := control.Partners(ctx)
	views := make([]partnerView, len(partners))
	for i, p := range partners {
		views[i] = viewPartner(p)
	}
	return views, err
}

type partnerPreverify struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	Domain  string          `required:"" placeholder:"HOST" help:"The partner's tracking domain, a full host name that it has pointed at the CNAME target."`
}

func (partnerPreverify) path() string { return "/partner/preverify" }

func (c partnerPreverify) Validate() error {
	_, err := store.CheckHostName("--domain", c.Domain)
	return err
}

func (c partnerPreverify) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := control.EnablePreverified(ctx, c.Partner, c.Domain)
	return viewPartner(p), err
}

type keyIssue struct {
	Partner   store.PartnerID `required:"" placeholder:"PARTNER_ID" help:"Id of the partner."`
	ExpiresIn time.Duration   `placeholder:"DURATION" help:"How long the key is valid, such as 720h (default for ever)."`
}

func (keyIssue) path() string { return "/key/issue" }

func (c keyIssue) Validate() error {
	if c.ExpiresIn < 0 {
		return store.Invalid("--expires-in", "must not be negative")
	}
	return nil
}

func (c keyIssue) apply(ctx context.Context, control store.Control) (any, error) {
	k, text, err := control.IssueKey(ctx, c.Partner, c.ExpiresIn)
	return struct {
		KeyID     store.KeyID  `json:"keyId"`
		APIKey    store.APIKey `json:"apiKey"`
		ExpiresAt *timestamp   `json:"expiresAt"`
	}{k.ID, text, optional(k.ExpiresAt)}, err
}

type keyList struct {
	Partner store.PartnerID `required:"" placeholder:"PARTNER_ID" help:"Id of the partner."`
}

func (keyList) path() string { return "/key/list" }

func (c keyList) apply(ctx context.Context, control store.Control) (any, error) {
	keys, err := control.Keys(ctx, c.Partner)
	views := make([]keyView, len(keys))
	for i, k := range keys {
		views[i] = viewKey(k)
	}
	return views, err
}

type keyRevoke struct {
	Key store.KeyID `arg:"" name:"key-id" help:"Id of the key, as issue and list show it."`
}

func (keyRevoke) path() string { return "/key/revoke" }

func (c keyRevoke) apply(ctx context.Context, control store.Control) (any, error) {
	k, err := control.RevokeKey(ctx, c.Key)
	return viewKey(k), err
}

// timestamp is a time in the form in which the service writes them all.
type timestamp time.Time

func (t timestamp) MarshalText() ([]byte, error) {
	return []byte(store.FormatTime(time.Time(t))), nil
}

func optional(t *time.Time) *timestamp { return (*timestamp)(t) }

type partnerView struct {
	ID        store.PartnerID `json:"partnerId"`
	Name      string          `json:"name"`
	CreatedAt timestamp       `json:"createdAt"`
	Domain    string          `json:"preverifiedDomain"`
}

func viewPartner(p store.Partner) partnerView {
	return partnerView{p.ID, p.Name, timestamp(p.CreatedAt), p.TrackingDomain}
}

type keyView struct {
	ID        store.KeyID `json:"keyId"`
	CreatedAt timestamp   `json:"createdAt"`
	ExpiresAt *timestamp  `json:"expiresAt"`
	RevokedAt *timestamp  `json:"revokedAt"`
}

func viewKey(k store.Key) keyView {
	return keyView{k.ID, timestamp(k.CreatedAt), optional(k.ExpiresAt), optional(k.RevokedAt)}
}

// maxOperatorMessage bounds a message on the operator socket, in bytes.
const maxOperatorMessage = 64 << 10

// operatorHandler carries out the commands that arrive on the operator socket.
func operatorHandler(control store.Control) http.Handler {
	mux := http.NewServeMux()
	handleOperator[partnerAdd](mux, control)
	handleOperator[partnerList](mux, control)
	handleOperator[partnerPreverify](mux, control)
	handleOperator[keyIssue](mux, control)
	handleOperator[keyList](mux, control)
	handleOperator[keyRevoke](mux, control)
	return mux
}

// handleOperator answers one command: 200 with what is to be printed, or 422 with the error that the
// engine gave. Any other status means that nobody understood the message.
func handleOperator[C operatorCommand](mux *http.ServeMux, control store.Control) {
	var zero C
	mux.HandleFunc("POST "+zero.path(), func(w http.ResponseWriter, r *http.Request) {
		var command C
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOperatorMessage)).Decode(&command); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		result, err := command.apply(r.Context(), control)
		if err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity)
			result = operatorError(err)
		}
		// Nobody is left to tell when this fails: the command has gone away.
		_ = json.NewEncoder(w).Encode(result)
	})
}

// operatorError keeps an error's kind across the socket. The reader is the operator, who may see internals.
func operatorError(err error) *store.Error {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e
	}
	return &store.Error{Kind: store.KindInternal, Message: err.Error()}
}
