package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store/postgres"
)

// operate runs an operator command and prints its result.
func operate(p *process, command operator.Command) error {
	client := operator.Client{
		Data: p.data,
		Open: func(ctx context.Context, create bool) (operator.Control, error) {
			if p.store != "" {
				return openDatabase(ctx, p.store, postgres.Options{Log: quietLog(p.stderr)})
			}
			return openControl(p.data, create, p.stderr)
		},
	}
	result, err := client.Run(p.ctx, command)
	if err != nil {
		return err
	}
	if printer, ok := command.(operator.Printer); ok {
		return printer.Print(p.stdout, result)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, result, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, string(bytes.TrimSpace(text.Bytes())))
	return err
}
