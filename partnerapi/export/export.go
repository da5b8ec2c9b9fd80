// Package export writes events as files: NDJSON, CSV, Parquet.
//
//	export.go   the formats
//	json.go     an event as one line of JSON, as the feed has it too
package export
