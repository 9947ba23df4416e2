// The judge of our HCL reading: HashiCorp's own parser. A line of standard input holds a text as a JSON string; a line
// of output says whether the parser takes it, whether it is of literals only, and what it reads.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

type block struct {
	Type   string   `json:"type"`
	Labels []string `json:"labels"`
	Body   *body    `json:"body"`
}

type body struct {
	Attributes map[string]interface{} `json:"attributes"`
	Blocks     []block                `json:"blocks"`
}

type answer struct {
	Accepted bool   `json:"accepted"`
	Literal  bool   `json:"literal"`
	Error    string `json:"error"`
	Body     *body  `json:"body"`
}

// literal says whether an expression is a string, number, boolean, list or object as it stands there.
func literal(expr hclsyntax.Expression) bool {
	switch e := expr.(type) {
	case *hclsyntax.LiteralValueExpr:
		return !e.Val.IsNull()
	case *hclsyntax.TemplateExpr:
		for _, part := range e.Parts {
			if _, is := part.(*hclsyntax.LiteralValueExpr); !is {
				return false
			}
		}
		return true
	case *hclsyntax.UnaryOpExpr:
		number, is := e.Val.(*hclsyntax.LiteralValueExpr)
		return is && e.Op == hclsyntax.OpNegate && e.SymbolRange.End.Byte == number.SrcRange.Start.Byte
	case *hclsyntax.TupleConsExpr:
		for _, item := range e.Exprs {
			if !literal(item) {
				return false
			}
		}
		return true
	case *hclsyntax.ObjectConsExpr:
		for _, item := range e.Items {
			key, is := item.KeyExpr.(*hclsyntax.ObjectConsKeyExpr)
			if !is || (hcl.ExprAsKeyword(key.Wrapped) == "" && !text(key.Wrapped)) || !literal(item.ValueExpr) {
				return false
			}
		}
		return true
	}
	return false
}

// text says whether an expression is a quoted string.
func text(expr hclsyntax.Expression) bool {
	_, is := expr.(*hclsyntax.TemplateExpr)
	return is && literal(expr)
}

// plain turns a value into what JSON can say, with the kind of each beside it.
func plain(value cty.Value) interface{} {
	kind := value.Type()
	switch {
	case kind == cty.String:
		return []interface{}{"string", value.AsString()}
	case kind == cty.Bool:
		return []interface{}{"bool", value.True()}
	case kind == cty.Number:
		number := value.AsBigFloat()
		if number.IsInt() {
			return []interface{}{"number", number.Text('f', 0)}
		}
		float, _ := number.Float64()
		return []interface{}{"number", strconv.FormatFloat(float, 'g', -1, 64)}
	case kind.IsTupleType():
		items := []interface{}{}
		for it := value.ElementIterator(); it.Next(); {
			_, item := it.Element()
			items = append(items, plain(item))
		}
		return []interface{}{"list", items}
	case kind.IsObjectType():
		fields := map[string]interface{}{}
		for it := value.ElementIterator(); it.Next(); {
			key, item := it.Element()
			fields[key.AsString()] = plain(item)
		}
		return []interface{}{"object", fields}
	}
	return []interface{}{"other", kind.FriendlyName()}
}

func read(from *hclsyntax.Body, said *answer) *body {
	made := &body{map[string]interface{}{}, []block{}}
	for name, attribute := range from.Attributes {
		if !literal(attribute.Expr) {
			said.Literal = false
			continue
		}
		value, diagnostics := attribute.Expr.Value(nil)
		if diagnostics.HasErrors() {
			said.Accepted, said.Error = false, diagnostics.Error()
			continue
		}
		made.Attributes[name] = plain(value)
	}
	for _, each := range from.Blocks {
		labels := append([]string{}, each.Labels...)
		made.Blocks = append(made.Blocks, block{each.Type, labels, read(each.Body, said)})
	}
	return made
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for lines.Scan() {
		var source string
		if err := json.Unmarshal(lines.Bytes(), &source); err != nil {
			panic(err)
		}
		said := answer{Accepted: true, Literal: true}
		file, diagnostics := hclsyntax.ParseConfig([]byte(source), "t.hcl", hcl.InitialPos)
		if diagnostics.HasErrors() {
			said = answer{Error: diagnostics.Error()}
		} else {
			said.Body = read(file.Body.(*hclsyntax.Body), &said)
		}
		if err := out.Encode(said); err != nil {
			panic(err)
		}
	}
}
