package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// program is what a command may use of its process.
type program struct {
	ctx    context.Context // ends with SIGINT or SIGTERM
	stdout io.Writer       // results
	stderr io.Writer       // progress
}

func (p *program) progress(format string, args ...any) {
	fmt.Fprintf(p.stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
