package main

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// unsetEmpty makes an empty MTAGD_ variable the same as an absent one, so that unit files and compose files may leave
// one blank.
func unsetEmpty(environ []string) error {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "MTAGD_") && value == "" {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkVariables refuses MTAGD_ variables that belong to no flag of any command: they are probably misspelt.
func checkVariables(environ []string, root *kong.Node) error {
	flags := map[string]*kong.Flag{}
	collectFlags(root, flags)
	var known []string
	for _, flag := range flags {
		known = append(known, flag.Envs...)
	}
	var errs []error
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "MTAGD_") || slices.Contains(known, name) || linkVariable.MatchString(entry) {
			continue
		}
		errs = append(errs, &usageError{where: name, err: errors.New("no flag has this variable: each --help names them")})
	}
	return errors.Join(errs...)
}

// linkVariable matches the variables that Kubernetes sets in each pod for a service whose name begins with mtagd, and
// those that Docker sets for a link to such a container: they include the variables of the linked container's own
// environment, after ENV_.
var linkVariable = regexp.MustCompile(`^MTAGD_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT=\w+://|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=|NAME=/\S+/\S+$|ENV_\w+=)`)
