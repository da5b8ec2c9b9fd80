// Package deploy has those files of this directory that the program reads, too.
package deploy

import _ "embed"

// Alerts is alerts.yml.
//
//go:embed alerts.yml
var Alerts []byte
