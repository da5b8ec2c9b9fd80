package operator

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"mtagd/store"
)

type KeyCommands struct {
	Issue  keyIssue  `cmd:"" help:"Issue an API key. Its text is shown only this once."`
	List   keyList   `cmd:"" help:"List the API keys of a partner, without their secrets."`
	Revoke keyRevoke `cmd:"" help:"Revoke an API key: the next request with it is refused."`
}

type keyIssue struct {
	Partner   store.PartnerID `required:"" placeholder:"PARTNER_ID" help:"Id of the partner."`
	Name      string          `placeholder:"TEXT" help:"What the key is for, shown in lists."`
	Scope     string          `default:"full" enum:"full,read" help:"What the key may do: full, or read for requests that change nothing (default ${default})."`
	Personal  bool            `name:"personal-data" help:"With --scope read: the key may also ask what is held of a person."`
	ExpiresIn lifetime        `placeholder:"DURATION" help:"How long the key is valid, such as 30d or 720h (default: it never expires)."`
}

func (c keyIssue) apply(ctx context.Context, control store.Control) (any, error) {
	opt := store.KeyOptions{Personal: c.Personal, ExpiresIn: time.Duration(c.ExpiresIn)}
	var err error
	if opt.Scope, err = store.ParseScope("--scope", cmp.Or(c.Scope, "full")); err != nil {
		return nil, err
	}
	if err = opt.CheckPersonal("--personal-data"); err != nil {
		return nil, err
	}
	if c.Name != "" {
		if opt.Name, err = store.CheckName("--name", c.Name); err != nil {
			return nil, err
		}
	}
	k, text, err := control.IssueKey(ctx, c.Partner, opt)
	return struct {
		KeyID     store.KeyID  `json:"keyId"`
		APIKey    store.APIKey `json:"apiKey"`
		ExpiresAt *timestamp   `json:"expiresAt"`
	}{k.ID, text, (*timestamp)(k.ExpiresAt)}, err
}

type keyList struct {
	Partner store.PartnerID `required:"" placeholder:"PARTNER_ID" help:"Id of the partner."`
}

func (c keyList) apply(ctx context.Context, control store.Control) (any, error) {
	keys, err := control.Keys(ctx, c.Partner)
	return views(keys, viewKey), err
}

type keyRevoke struct {
	Key store.KeyID `arg:"" name:"key-id" help:"Id of the key, as printed by issue and list."`
}

func (c keyRevoke) apply(ctx context.Context, control store.Control) (any, error) {
	k, err := control.RevokeKey(ctx, c.Key, true)
	return viewKey(k), err
}

type keyView struct {
	ID         store.KeyID `json:"keyId"`
	Name       string      `json:"name"`
	Scope      string      `json:"scope"`
	Personal   bool        `json:"personalData,omitzero"`
	CreatedAt  timestamp   `json:"createdAt"`
	ExpiresAt  *timestamp  `json:"expiresAt"`
	RevokedAt  *timestamp  `json:"revokedAt"`
	LastUsedAt timestamp   `json:"lastUsedAt"`
}

func viewKey(k store.Key) keyView {
	return keyView{k.ID, k.Name, k.Scope.String(), k.Personal, timestamp(k.CreatedAt), (*timestamp)(k.ExpiresAt), (*timestamp)(k.RevokedAt), timestamp(k.LastUsedAt)}
}

// lifetime is how long a key is valid. Zero means for ever; the flag itself refuses zero.
type lifetime time.Duration

const (
	day     = 24 * time.Hour
	maxDays = math.MaxInt64 / int64(day) // 292 years
)

// Decode reads the flag's value: days such as 30d, or a Go duration such as 720h.
func (l *lifetime) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := ParseLifetime(text)
	*l = lifetime(d)
	return err
}

// ParseLifetime reads a positive duration: days such as 30d, or a Go duration such as 720h.
func ParseLifetime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int64
		if n, err = strconv.ParseInt(days, 10, 64); err == nil && n <= maxDays {
			d = time.Duration(n) * day
		}
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("must be a positive duration of at most %dd, such as 30d, 720h or 90m, not %q", maxDays, text)
	}
	return d, nil
}

type ConsoleCommands struct {
	Link consoleLink `cmd:"" help:"Make a link that signs in to the web console. It can be used once, within 15 minutes."`
	End  consoleEnd  `cmd:"" help:"End all sessions of a partner or of operators, and their links: the next request is refused."`
}

type consoleLink struct {
	Partner  store.PartnerID `required:"" xor:"who" placeholder:"PARTNER_ID" help:"Sign in as this partner, with all its rights."`
	Operator bool            `required:"" xor:"who" help:"Sign in as an operator, to look at the whole service."`
	BaseHost string          `placeholder:"HOST" help:"Base host of the service, for the link. Only needed while no server runs."`
}

func (c consoleLink) apply(ctx context.Context, control store.Control) (any, error) {
	if err := checkWho(c.Partner, c.Operator); err != nil {
		return nil, err
	}
	base := ""
	if running, ok := control.(Running); ok {
		base = running.BaseURL
	} else if c.BaseHost == "" {
		return nil, store.Invalid("--base-host", "is required while no server runs")
	} else {
		host, err := store.CheckHostName("--base-host", c.BaseHost)
		if err != nil {
			return nil, err
		}
		base = "https://" + host
	}
	link, text, err := control.AddLink(ctx, c.Partner)
	if err != nil {
		return nil, err
	}
	return struct {
		URL       string    `json:"url"`
		ExpiresAt timestamp `json:"expiresAt"`
	}{base + "/console/#link=" + string(text), timestamp(link.ExpiresAt)}, nil
}

type consoleEnd struct {
	Partner  store.PartnerID `required:"" xor:"who" placeholder:"PARTNER_ID" help:"End the sessions of this partner. Its API keys stay valid."`
	Operator bool            `required:"" xor:"who" help:"End the sessions of operators."`
}

func (c consoleEnd) apply(ctx context.Context, control store.Control) (any, error) {
	if err := checkWho(c.Partner, c.Operator); err != nil {
		return nil, err
	}
	n, err := control.EndSessions(ctx, c.Partner)
	return struct {
		Ended int `json:"ended"`
	}{n}, err
}

// checkWho checks that either a partner or the operators are meant, so that an empty id is not taken for the operators.
func checkWho(partner store.PartnerID, operators bool) error {
	if (partner == "") != operators {
		return store.Invalid("--partner", "or --operator is required, and not both")
	}
	return nil
}

type SecretCommands struct {
	Rotate secretRotate `cmd:"" help:"Make a new key in the key file, and encrypt the secrets of all destinations by it. The old keys stay in the file: drop them when no backup needs them. Copy the file to the other nodes."`
}

type secretRotate struct{}

func (secretRotate) apply(ctx context.Context, control store.Control) (any, error) {
	running, is := control.(Running)
	if !is {
		return nil, store.Conflict("", "no server runs on this data directory: start it, and run the command again")
	}
	if running.RotateKey == nil {
		return nil, store.Conflict("", "events are not delivered: set --secret-key-file")
	}
	n, err := running.RotateKey(ctx)
	return struct {
		Destinations int `json:"destinations"`
	}{n}, err
}
