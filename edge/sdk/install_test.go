package sdk_test

import "testing"

func TestCallsBeforeAndAfterTheLoaderRunInOrder(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`mtag('event', 'Third')`)
	w.want("PageView", "Third")
}
