package main

import (
	"os"
	"strings"
)

// unsetEmpty makes an empty MTAGD_ variable the same as an absent one, so that unit files and compose files may leave one
// blank.
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
