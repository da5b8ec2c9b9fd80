// Package deploy embeds the files of this directory that the program also reads.
package deploy

import _ "embed"

// Alerts is alerts.yml.
//
//go:embed alerts.yml
var Alerts []byte
