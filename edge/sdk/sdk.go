// Package sdk holds the browser tag: the loader script that a page fetches from its tag host
// (spec, Browser installation contract).
package sdk

import _ "embed" // the loader is a file beside this one

//go:embed loader.js
var loader []byte

// Loader is the script, UTF-8 encoded. The caller must not change it.
func Loader() []byte { return loader }
