package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestEveryWrongBitInATableIsCorrectedOrHasNoEffect(t *testing.T) {
	dir, _ := killedJournal(t)
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	table, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	try := func(at, bit int) {
		damaged := bytes.Clone(table)
		damaged[at] ^= 1 << bit
		corrected, err := checkTable(damaged, false)
		if err != nil || corrected != bytes.Equal(damaged, table) {
			t.Fatalf("bit %d of byte %d of %d: corrected %v, %v", bit, at, len(table), corrected, err)
		}
	}
	for at := 0; at < len(table); at += 1 + len(table)/500 {
		try(at, at%8)
	}
	for at := len(table) - 200; at < len(table); at++ { // the footer, and the end of the index
		try(at, at%8)
	}
}

func TestTwoWrongBitsInATableAreDamage(t *testing.T) {
	dir, _ := killedJournal(t)
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	table, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	table[100] ^= 1
	table[300] ^= 4
	if _, err := checkTable(table, false); err == nil {
		t.Error("the table is sound")
	}
}
