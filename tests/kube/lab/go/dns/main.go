// CoreDNS with the few plugins that the lab's Corefile names: the whole of it takes three times as long to compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which a query goes through them.
	dnsserver.Directives = []string{"bind", "errors", "hosts", "kubernetes", "template"}
	coremain.Run()
}
