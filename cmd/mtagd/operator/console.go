package operator

import (
	"context"
	"log/slog"

	"mtagd/store"
)

// ConsoleCommands are the subcommands of "mtagd console".
type ConsoleCommands struct {
	Link consoleLink `cmd:"" help:"Make a link that signs in to the web console. It can be used once, within 15 minutes."`
}

// WithBaseURL wraps the control data for the operator commands of a running server, which knows its address.
func WithBaseURL(control store.Control, url string) store.Control {
	return addressedControl{control, url}
}

type addressedControl struct {
	store.Control
	baseURL string
}

type consoleLink struct {
	Partner  store.PartnerID `required:"" xor:"who" placeholder:"PARTNER_ID" help:"Sign in as this partner, with all its rights."`
	Operator bool            `required:"" xor:"who" help:"Sign in as an operator, to look at the whole service."`
	BaseHost string          `placeholder:"HOST" help:"Base host of the service, for the link. Only needed while no server runs."`
}

func (consoleLink) path() string { return "/console/link" }

func (c consoleLink) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	if (c.Partner == "") != c.Operator {
		return nil, store.Invalid("--partner", "or --operator is required, and not both")
	}
	base := ""
	if addressed, ok := control.(addressedControl); ok {
		base = addressed.baseURL
	} else if c.BaseHost == "" {
		return nil, store.Invalid("--base-host", "is required, because no server runs that knows it")
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
	log.Info("console link made", "partner", link.Partner, "link_id", link.ID)
	return struct {
		URL       string    `json:"url"`
		ExpiresAt timestamp `json:"expiresAt"`
	}{base + "/console/#link=" + string(text), timestamp(link.ExpiresAt)}, nil
}
