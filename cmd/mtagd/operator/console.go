package operator

import (
	"context"

	"mtagd/store"
)

// ConsoleCommands are the subcommands of "mtagd console".
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
	return struct {
		URL       string    `json:"url"`
		ExpiresAt timestamp `json:"expiresAt"`
	}{base + "/console/#link=" + string(text), timestamp(link.ExpiresAt)}, nil
}

type consoleEnd struct {
	Partner  store.PartnerID `required:"" xor:"who" placeholder:"PARTNER_ID" help:"End those of this partner. Its API keys stay valid."`
	Operator bool            `required:"" xor:"who" help:"End those of operators."`
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
