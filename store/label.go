package store

import (
	"errors"
	"math/rand/v2"
)

// A label is the name of a tag's DNS record, of the form mtag-xxxx (spec, Resources: Tracking tag). No two tags have the same.
// A tag that has lost its domain keeps its label, because the DNS record may still point here. Only a deletion frees the label.
const (
	labelPrefix   = "mtag-"
	labelAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	labelCodeLen  = 4

	// allLabels is how many labels there are. The spec's form does not allow more.
	allLabels = 36 * 36 * 36 * 36
	// UsableLabels is how many labels tags can have. The rest keeps the drawing quick.
	UsableLabels = allLabels / 10 * 9
	// ManyLabels is the number of labels in use from which the operator is warned.
	ManyLabels = allLabels / 10
)

// CheckLabels returns an error when the partner may not have another label: it has own labels, and all partners together
// have used. KindLimited: the partner is at its limit. KindUnavailable: hardly any label is left.
func (l PartnerLimits) CheckLabels(own, used int) error {
	if !l.Labels.Or(DefaultLabels).allows(own + 1) {
		return Limited("type", "needs a label, and the partner has %d labels, which is its limit. "+
			"Ask the operator of the service for more", own)
	}
	if used >= UsableLabels {
		return Unavailable("the labels are nearly used up: no tag gets a new mtag-xxxx label")
	}
	return nil
}

// DrawLabel returns a random label of the form mtag-xxxx that is not taken. It returns an error when all 36⁴ labels are
// taken. While at most UsableLabels are taken, it tries ten on average.
func DrawLabel(taken func(label string) bool) (string, error) {
	// The stride is a prime that does not divide the number of codes, so the steps visit every code once. It is large, so
	// that labels that follow a collision are not neighbours.
	const stride = 1_000_003
	start := rand.IntN(allLabels)
	for i := range allLabels {
		label := labelPrefix + labelCode((start+i*stride)%allLabels)
		if !taken(label) {
			return label, nil
		}
	}
	return "", errors.New("every mtag-xxxx label is taken")
}

func labelCode(n int) string {
	var code [labelCodeLen]byte
	for i := range code {
		code[i] = labelAlphabet[n%len(labelAlphabet)]
		n /= len(labelAlphabet)
	}
	return string(code[:])
}
