// Package backup writes backups of a data directory, and reads them. It knows neither bbolt nor Badger: a Source streams
// what is in a data directory, and a Target takes what a restore reads.
//
// # Words
//
// A point is a data directory as of one moment. A base is a point with everything; an increment has what is new since its
// parent, which is an older point. A point and its parents, down to a base, are its chain. A small point is one of a backup
// every few seconds.
//
// # What is in a destination
//
// A destination is a directory or an S3 bucket. It holds points of any number of data directories. DATA is the id of a data
// directory, POINT the time and four random letters, such as 20261122T143000.000Z-k3wp, N a number from 000001.
//
//	DATA/points/POINT.json  the manifest of a point (manifest.go)
//	DATA/objects/POINT/N    a piece of a point (piece.go)
//	DATA/lock               in a directory: the file that a running backup has locked
//
// A manifest is the SHA-256 of its JSON in hexadecimal digits, a line feed, and the JSON. A piece has up to 4 MiB of content
// (control.db: 256 KiB), compressed with zstd, and then encrypted with age if the point has recipients.
//
// No object is ever changed. The manifest has the SHA-256 of each piece, and is written last: a point exists when its
// manifest does. What a killed backup has left behind is garbage, which the next one removes. Manifests are not
// encrypted, so that a backup needs no secret to go on from the newest point.
//
// # What is in a point
//
// Control data: the whole of control.db. Pieces that are the same as the parent's are not written again. Events: the newest
// entry of each key of the journal that was written after the parent's version, deletions included (codec.Entry), chunks
// first. Certificates, if asked for: one entry for each file, its key is the path. The index is not in a backup. It is
// rebuilt.
//
//	run.go          makes a point, and removes what is no longer needed
//	point.go        writes what arrives as the pieces of a point
//	chain.go        on which point the next one builds; which points and objects are no longer needed
//	verify.go       checks points
//	restore.go      reads the chain of a point into a Target
//	list.go         finds points
//	stream.go       how a data directory arrives: Source, and the frames of its stream
//	manifest.go     Manifest: what belongs to a point
//	piece.go        compresses and encrypts pieces
//	directory.go    a directory as a destination
//	s3.go           a bucket as a destination
//	destination.go  Destination: where backups are, and the choice of one by its name
package backup
