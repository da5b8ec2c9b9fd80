package store

import "time"

// CertificateStatus tells how far the TLS certificate of a host has come.
type CertificateStatus string

// The words for a certificate's way.
const (
	CertificateNone    CertificateStatus = "none"    // not ordered: DNS does not point here
	CertificatePending CertificateStatus = "pending" // being loaded or ordered
	CertificateValid   CertificateStatus = "valid"   // handshakes succeed
	CertificateFailed  CertificateStatus = "failed"  // the last order failed, or a renewal did until the certificate expired; tried again
)

// Certificate is what is known of a host's TLS certificate.
type Certificate struct {
	Status   CertificateStatus
	Detail   string    // why the last order or renewal failed, for the merchant; else ""
	NotAfter time.Time // when it expires; zero while there is none
	NextTry  time.Time // of a failed order; zero else
}
