package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"mtagd/store/local"
	"mtagd/store/local/backup"
	"mtagd/store/postgres/schema"
)

// release and commit are set by make release, whose builds do not depend on the state of a repository.
var release, commit string

// version returns the version of the program. The go command derives it from the tag or commit that it builds.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// revision returns the commit that the program was built from.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok && commit == "" {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return cmp.Or(commit, "unknown")
}

type versionCommand struct{}

// Run prints the version, and the formats of data that it reads.
func (versionCommand) Run(p *process) error {
	_, err := fmt.Fprintf(p.stdout, "mtagd %s\ncommit %s\n%s %s/%s\ndata directory: %s\nbackups: format %d and older\nPostgreSQL: schema %d and older\n",
		version(), revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH, local.Formats, backup.Format, schema.Version)
	return err
}
