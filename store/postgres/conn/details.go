package conn

import (
	"fmt"
	"strings"

	"mtagd/store"
)

// DetailColumns are the columns of store.Details in the table event.
var DetailColumns = strings.Join(store.DetailColumns, ", ")

// DetailParameters lists the parameters of a statement that Details returns, the first of which has a number. A comma is before each.
func DetailParameters(number int) string {
	var b strings.Builder
	for i, v := range new(store.Details).Values() {
		fmt.Fprintf(&b, ", $%d::", number+i)
		if _, isFlag := v.(*bool); isFlag {
			b.WriteString("boolean[]")
		} else {
			b.WriteString("bytea[]")
		}
	}
	return b.String()
}

// Details returns the details of events as parameters of a statement, one for each of DetailColumns.
func Details[T any](events []T, of func(*T) *store.Details) (parameters []any) {
	values := Map(events, func(e *T) []any { return of(e).Values() })
	for i, v := range new(store.Details).Values() {
		if _, isFlag := v.(*bool); isFlag {
			parameters = append(parameters, column[bool](values, i))
		} else {
			parameters = append(parameters, column[[]byte](values, i))
		}
	}
	return parameters
}

func column[V any](values [][]any, i int) []V {
	return Map(values, func(v *[]any) V { return *(*v)[i].(*V) })
}
