//go:build race

package testenv

// Race says that the race detector is on: it makes everything several times slower, and empties pools at random.
const Race = true
