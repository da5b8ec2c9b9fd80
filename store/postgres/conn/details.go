package conn

import (
	"fmt"
	"strings"

	"mtagd/store"
)

// DetailColumns are the columns of store.Details in the table event.
var DetailColumns = strings.Join(store.DetailColumns, ", ")

// DetailsFrom lists the parameters of a statement that Details returns, the first of which has a number, and what becomes of
// them in the table event: bytes that are not set are NULL.
func DetailsFrom(number int) (parameters, values string) {
	var types, columns []string
	for i, v := range new(store.Details).Values() {
		column := store.DetailColumns[i]
		if _, isFlag := v.(*bool); isFlag {
			types, columns = append(types, fmt.Sprintf("$%d::boolean[]", number+i)), append(columns, column)
		} else {
			types, columns = append(types, fmt.Sprintf("$%d::bytea[]", number+i)), append(columns, "nullif("+column+", '')")
		}
	}
	return strings.Join(types, ", "), strings.Join(columns, ", ")
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
