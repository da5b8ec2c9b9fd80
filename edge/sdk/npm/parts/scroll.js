if (typeof document != 'undefined') {
(()=>{var r=window.mtrem=window.mtrem||[];function o(t,e){r[t]||(r[t]=!0,e())}var i=(t,e)=>r.push(["event",t,e]);o("scroll",()=>{let t="",e=0;addEventListener("scroll",()=>{let n=location.href;t==n||e||(e=setTimeout(()=>{e=0;let{scrollHeight:s}=document.scrollingElement||document.documentElement;n!=location.href||scrollY+innerHeight<s*.9||(t=n,i("Scroll",{percent_scrolled:90}))},200))},{passive:!0}),addEventListener("pageshow",n=>n.persisted&&(t=""))});})();
}
