package store

import "time"

// CertificateStatus is the state of a host's TLS certificate.
type CertificateStatus string

// The states of a certificate.
const (
	CertificateNone    CertificateStatus = "none"    // not ordered: DNS does not lead here
	CertificatePending CertificateStatus = "pending" // being loaded or ordered
	CertificateValid   CertificateStatus = "valid"   // handshakes succeed
	CertificateFailed  CertificateStatus = "failed"  // none is valid, as the last order or renewal failed; it is retried
)

// Certificate is what is known about a host's TLS certificate.
type Certificate struct {
	Status   CertificateStatus
	Detail   string    // why the last order or renewal failed, for the merchant; empty when it did not fail
	NotAfter time.Time // when the certificate expires; zero when there is none
	NextTry  time.Time // when a failed order is retried; zero when none failed
}
